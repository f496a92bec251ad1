// Opening a session's page brings its agent back.
//
// On open, and again whenever the connection comes back: ask `task.session.status`; if `needs_resume && is_resumable`,
// send `task.session.resume`, at most once in each boot of the backend. How it went comes as notifications, also to the
// tabs that did not ask.

import { type ReadonlySignal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Action, Answer, Notification, Status } from "../../../wire/answers";
import { ConnectionLost, Refused, wordsOf } from "../../../wire/failures";
import type { Requests } from "../../../wire/types";

/** `resumed`: a start has ended well while this page looked on. `running`: the agent ran already. `idle`: nothing is
 * to be done, or the setting leaves it to a person. */
export type ResumptionState = "idle" | "checking" | "resuming" | "resumed" | "running" | "error";

export interface ResumptionFailure {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
}

/** What the hook needs of the connection. */
export interface Backend {
  request<A extends Action>(action: A, payload: Requests[A]): Promise<Answer<A>>;
  listen(listener: (notification: Notification) => void): () => void;
  /** Calls at once if the connection stands, then each time it does again, with the backend's boot id. */
  whenOpen(listener: (bootId: string) => void): () => void;
}

export interface ResumptionOptions {
  /** Whether to resume without being asked. */
  readonly isAutomatic: () => boolean;
}

/** Causes of a start that was ended on purpose: no failures. */
const ON_PURPOSE = new Set(["cancelled", "stopping"]);

/** Case 2 of the specification: the agent was seen a moment ago. After this long, that is over. */
const RECENTLY_SEEN_MS = 30_000;

export class SessionResumption {
  readonly state = signal<ResumptionState>("idle");
  /** Checking, workspace, launching, starting_agent, restoring, ready; "" outside of a start. */
  readonly stage = signal("");
  readonly startedAt = signal(0);
  readonly failure = signal<ResumptionFailure | undefined>(undefined);

  /** The boot in which a resume was asked for, so that it is asked for once: a start that failed is a person's matter. */
  private attemptedIn = "";
  private bootId = "";
  /** Count questions and notifications: an answer to an older question is dropped, one that was overtaken is stale. */
  private questions = 0;
  private heard = 0;
  private leave: (() => void)[] = [];
  private later: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly backend: Backend,
    private readonly taskId: string,
    private readonly sessionId: string,
    private readonly options: ResumptionOptions,
  ) {}

  /** Begin; the returned function ends it. */
  open(): () => void {
    this.leave = [
      this.backend.listen((notification) => this.hear(notification)),
      this.backend.whenOpen((bootId) => this.connected(bootId)),
    ];
    return () => {
      this.questions++;
      clearTimeout(this.later);
      for (const leave of this.leave) leave();
    };
  }

  get hasAttemptedResume(): boolean {
    return this.bootId !== "" && this.attemptedIn === this.bootId;
  }

  /** A person asks for it: also after a failure, and a queue that waited for a person goes on. */
  async resume(): Promise<void> {
    await this.attempt({ open_queue: true });
  }

  private connected(bootId: string): void {
    this.bootId = bootId;
    void this.check();
  }

  private async check(): Promise<void> {
    clearTimeout(this.later);
    const question = ++this.questions;
    const heard = this.heard;
    if (this.state.value === "idle") this.state.value = "checking";
    try {
      const ids = { task_id: this.taskId, session_id: this.sessionId };
      const status = await this.backend.request("task.session.status", ids);
      if (question !== this.questions) return;
      if (heard !== this.heard) return this.checkAgain();
      this.decide(status);
    } catch (error) {
      if (question === this.questions) this.refuse(error);
    }
  }

  /** The answer was overtaken (UI-2). What overtook it has decided, unless the state is still open. */
  private checkAgain(): void {
    if (this.state.value === "checking") void this.check();
  }

  private decide(status: Status): void {
    if (status.is_agent_running) {
      this.settle(this.state.value === "resuming" || this.state.value === "resumed" ? "resumed" : "running");
    } else if (status.stage !== "") {
      this.showStage(status.stage); // somebody else's start: its end is told
    } else if (status.needs_resume && status.is_resumable) {
      this.decideToResume();
    } else {
      if (this.state.value !== "error") this.settle("idle");
      if (status.resume_reason === "stale_execution")
        this.later = setTimeout(() => void this.check(), RECENTLY_SEEN_MS);
    }
  }

  private decideToResume(): void {
    if (this.hasAttemptedResume) {
      if (this.state.value !== "error") this.settle("idle");
    } else if (this.options.isAutomatic()) void this.attempt({});
    else this.settle("idle");
  }

  private async attempt(asked: { open_queue?: boolean }): Promise<void> {
    const question = ++this.questions;
    this.attemptedIn = this.bootId;
    this.failure.value = undefined;
    this.showStage("");
    try {
      const ids = { task_id: this.taskId, session_id: this.sessionId };
      const answer = await this.backend.request("task.session.resume", { ...ids, ...asked });
      if (question === this.questions && this.state.value === "resuming" && answer.already_running)
        this.settle("running");
    } catch (error) {
      if (error instanceof ConnectionLost)
        this.attemptedIn = ""; // nobody knows whether it arrived; twice does no harm
      else if (question === this.questions && this.state.value === "resuming") this.refuse(error);
    }
  }

  private hear({ action, payload }: Notification): void {
    if (payload.session_id !== this.sessionId) return;
    switch (action) {
      case "session.resume.progress":
        this.heard++;
        this.showStage(payload.stage);
        break;
      case "session.resume.completed":
        this.heard++;
        this.settle(payload.how === "already_running" ? "running" : "resumed");
        break;
      case "session.resume.failed":
        this.heard++;
        if (ON_PURPOSE.has(payload.cause)) this.settle("idle");
        else this.fail({ code: payload.code, reason: payload.reason, message: payload.message });
        break;
      case "session.agent_changed":
        this.heard++;
        if (!payload.is_agent_running) this.lostAgent();
        break;
    }
  }

  /** The agent ended while the page was open: by itself, by idleness, or on purpose. The next message wakes it. */
  private lostAgent(): void {
    if (this.state.value === "running" || this.state.value === "resumed") this.settle("idle");
  }

  private showStage(stage: string): void {
    if (this.state.value !== "resuming") this.startedAt.value = Date.now();
    this.state.value = "resuming";
    this.stage.value = stage;
  }

  private settle(state: ResumptionState): void {
    this.state.value = state;
    this.stage.value = "";
    this.failure.value = undefined;
  }

  private refuse(error: unknown): void {
    if (error instanceof ConnectionLost) return; // asked again when the connection stands
    const known = error instanceof Refused ? { code: error.code, reason: error.reason } : { code: "", reason: "" };
    this.fail({ ...known, message: wordsOf(error) });
  }

  private fail(failure: ResumptionFailure): void {
    this.state.value = "error";
    this.stage.value = "";
    this.failure.value = failure;
  }
}

export interface SessionResumptionView {
  readonly state: ReadonlySignal<ResumptionState>;
  readonly stage: ReadonlySignal<string>;
  readonly startedAt: ReadonlySignal<number>;
  readonly failure: ReadonlySignal<ResumptionFailure | undefined>;
  readonly resume: () => Promise<void>;
}

/** Bring the session back while the component is shown. */
export function useSessionResumption(
  backend: Backend,
  taskId: string,
  sessionId: string,
  options: ResumptionOptions,
): SessionResumptionView {
  const resumption = useMemo(
    () => new SessionResumption(backend, taskId, sessionId, options),
    [backend, taskId, sessionId],
  );
  useEffect(() => resumption.open(), [resumption]);
  return useMemo(() => ({ ...pick(resumption), resume: () => resumption.resume() }), [resumption]);
}

function pick({ state, stage, startedAt, failure }: SessionResumption) {
  return { state, stage, startedAt, failure };
}
