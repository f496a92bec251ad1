// A task that is being thought of: what was typed is kept until the task is there.

import { computed, signal } from "@preact/signals";
import type { Services } from "../services";
import { kept } from "../stores/kept";
import type { Agent, Answer, Runtime } from "../wire/answers";
import { wordsOf } from "../wire/failures";
import { newId } from "../wire/ids";

const lastAgent = kept("agent", "");
const description = kept("new-task", "");

export class NewTask {
  readonly description = description;
  /** Asked for by name; "": as the agent's table or the server says. */
  readonly runtime = signal("");
  readonly runtimes = signal<readonly Runtime[]>([]);
  readonly repository = signal("");
  readonly branch = signal("");
  readonly problem = signal("");
  readonly isBusy = signal(false);
  /** Those that could be started now come first. */
  readonly offered = computed(() => [...this.services.agents.value].sort((a, b) => rank(a) - rank(b)));
  readonly agent = computed(
    () =>
      this.offered.value.find((one) => one.name === lastAgent.value && one.launchable) ??
      this.offered.value.find((one) => one.launchable),
  );
  /** Where it would run. */
  readonly where = computed(() => {
    const name = this.runtime.value || this.agent.value?.runtime;
    return this.runtimes.value.find((one) => (name ? one.name === name : one.default));
  });
  readonly isPossible = computed(() => {
    const isWanted = description.value.trim() !== "" && this.agent.value !== undefined;
    return isWanted && !this.isBusy.value && this.where.value?.available !== false;
  });
  private readonly id = newId(); // pressed twice, it is one task

  constructor(private readonly services: Services) {}

  choose(agent: string): void {
    lastAgent.value = agent;
  }

  chooseRuntime(name: string): void {
    this.runtime.value = name;
    void this.lookAround();
  }

  /** Ask where agents can run: an engine may have been started since. */
  async lookAround(): Promise<void> {
    const before = { runtimes: this.runtimes.value };
    this.runtimes.value = (await this.services.connection.request("runtime.list", {}).catch(() => before)).runtimes;
  }

  /** Create it, and say where it is; undefined where that failed, which `problem` tells. */
  async create(): Promise<Answer<"task.create"> | undefined> {
    const agent = this.agent.value;
    if (!this.isPossible.value || agent === undefined) return undefined;
    this.isBusy.value = true;
    this.problem.value = "";
    try {
      const made = await this.services.connection.request("task.create", {
        description: description.value,
        agent: agent.name,
        client_task_id: this.id,
        ...(this.runtime.value && { runtime: this.runtime.value }),
        ...(this.repository.value && { repository_path: this.repository.value }),
        ...(this.branch.value && { base_branch: this.branch.value }),
      });
      description.value = "";
      return made;
    } catch (error) {
      this.problem.value = wordsOf(error);
      return undefined;
    } finally {
      this.isBusy.value = false;
    }
  }
}

/** An agent's name, and what stands in its way. */
export function nameOf({ display_name, launchable, found, problem }: Agent): string {
  if (!launchable) return `${display_name} · not in this version`;
  if (!found) return `${display_name} · not found on this machine`;
  return problem ? `${display_name} · ${problem}` : display_name;
}

/** A runtime's name, and whether it can be used. */
export function placeName({ name, available }: Runtime): string {
  return available ? name : `${name} · not ready`;
}

function rank({ problem, launchable, name }: Agent): number {
  if (!launchable) return 3;
  if (problem !== "") return 2;
  return name.startsWith("demo") ? 1 : 0;
}
