// What every part of the page uses, made once.

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { type Signal, signal } from "@preact/signals";
import { BoardStore } from "./stores/board";
import { callWhenNeeded } from "./stores/calls";
import { kept } from "./stores/kept";
import type { Agent } from "./wire/answers";
import { Connection } from "./wire/connection";

export interface Services {
  readonly connection: Connection;
  readonly board: BoardStore;
  readonly agents: Signal<readonly Agent[]>;
  readonly isResumeAutomatic: Signal<boolean>;
  readonly isCalling: Signal<boolean>;
  /** A sentence that is told once, and to screen readers too. */
  readonly said: Signal<string>;
}

export function makeServices(): Services {
  const connection = new Connection(location.origin.replace(/^http/, "ws") + "/ws", undefined, mayEnter);
  const agents = signal<readonly Agent[]>([]);
  connection.whenOpen(async () => {
    agents.value = (await connection.request("agent.list", {}).catch(() => ({ agents: agents.value }))).agents;
  });
  const board = new BoardStore(connection);
  const isCalling = kept("calls", false);
  callWhenNeeded(board, isCalling);
  return { connection, board, agents, isResumeAutomatic: kept("auto-resume", true), isCalling, said: signal("") };
}

/** A refused WebSocket tells a page nothing, so ask over HTTP whether it is the token. */
async function mayEnter(): Promise<boolean> {
  try {
    return (await fetch("/", { method: "HEAD", cache: "no-store" })).status !== 401;
  } catch {
    return true;
  }
}

const Context = createContext<Services | undefined>(undefined);
export const ServicesProvider = Context.Provider;

export function useServices(): Services {
  const services = useContext(Context);
  if (services === undefined) throw new Error("There are no services above this component.");
  return services;
}

/** The name by which people know an agent. */
export function useAgentName(name: string): string {
  return useServices().agents.value.find((one) => one.name === name)?.display_name ?? name;
}
