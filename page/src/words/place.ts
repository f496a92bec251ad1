// Where a task stands on the board, and the words and the shape that say so.

import type { BoardEntry } from "../wire/types";
import { stageWords } from "./stages";

export type Column = "needs" | "working" | "review" | "done";

export const COLUMNS: readonly { readonly id: Column; readonly name: string }[] = [
  { id: "needs", name: "Needs you" },
  { id: "working", name: "Working" },
  { id: "review", name: "Review" },
  { id: "done", name: "Done" },
];

/** A tone is a colour, and never alone: the shape and the words say the same. */
export type Tone = "needs" | "working" | "good" | "failed" | "quiet";

export interface Place {
  readonly column: Column;
  readonly tone: Tone;
  readonly shape: string;
  readonly words: string;
}

const HELD: Readonly<Record<string, string>> = {
  token_rejected: "No longer has this conversation",
  parked: "Ended five times within a minute",
  interrupted: "Was cut off",
  mode_not_restored: "Did not take back its mode",
};

/** `asks` is the title of the permission that waits, if any. */
export function placeOf({ task, status }: BoardEntry, asks = ""): Place {
  if (task.state === "COMPLETED") return { column: "done", tone: "good", shape: "✓", words: "Completed" };
  if (task.state === "CANCELLED") return { column: "done", tone: "quiet", shape: "–", words: "Cancelled" };
  if (status === null) return { column: "review", tone: "quiet", shape: "○", words: "No session" };
  if (status.needs === "permission") return needs(asks ? `Asks: ${asks}` : "Asks for permission");
  if (status.needs === "login") return needs("Wants you to log in");
  if (status.state === "FAILED" || task.state === "FAILED") {
    return { column: "needs", tone: "failed", shape: "✕", words: status.error || "Failed" };
  }
  if (status.needs === "decision") return needs(HELD[status.queue_held] ?? "Needs a decision");
  if (status.stage !== "") return working(`Coming back: ${stageWords(status.stage)}`);
  if (status.turn !== null) return working("Working");
  if (status.state === "STARTING" || task.state === "IN_PROGRESS") return working("Starting");
  if (status.state === "CREATED") return { column: "review", tone: "quiet", shape: "○", words: "Not started" };
  if (status.state === "CANCELLED") return { column: "review", tone: "quiet", shape: "–", words: "Stopped" };
  return { column: "review", tone: "good", shape: "✓", words: "Waiting for you" };
}

function needs(words: string): Place {
  return { column: "needs", tone: "needs", shape: "●", words };
}

function working(words: string): Place {
  return { column: "working", tone: "working", shape: "◐", words };
}
