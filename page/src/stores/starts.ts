// How the agent came back each time, by the place in the transcript behind which that was.

import { signal } from "@preact/signals";
import type { Connection } from "../wire/connection";
import type { ResumeOutcome } from "../wire/types";

export class Starts {
  readonly byPlace = signal<ReadonlyMap<number, ResumeOutcome>>(new Map());

  constructor(
    private readonly connection: Pick<Connection, "request" | "whenOpen" | "listen">,
    private readonly sessionId: string,
  ) {}

  /** Load them whenever the connection stands and after each start, until the returned function is called. */
  open(): () => void {
    const leave = [
      this.connection.whenOpen(() => void this.load()),
      this.connection.listen(({ action, payload }) => {
        if (action === "session.resume.completed" && payload.session_id === this.sessionId) void this.load();
      }),
    ];
    return () => leave.forEach((one) => one());
  }

  private async load(): Promise<void> {
    try {
      const { resumes } = await this.connection.request("task.session.get", { session_id: this.sessionId });
      const oldestFirst = [...resumes].reverse().filter((one) => one.after_seq > 0 && one.how !== "");
      this.byPlace.value = new Map(oldestFirst.map((one) => [one.after_seq, one])); // of several in one place, the last
    } catch {
      // The connection is lost, or the session gone: nothing is told of starts then.
    }
  }
}
