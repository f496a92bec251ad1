// Everything that the page knows of one session: the snapshot, and what was notified since.

import { batch, signal } from "@preact/signals";
import type { Mode, Notification, Option, Queued, Snapshot, Status } from "../wire/answers";
import type { Connection, Follower } from "../wire/connection";
import type { Message, PermissionRequest, SessionView, Turn } from "../wire/types";
import { Transcript } from "./transcript";

/** A start that just went well, told once: until the next turn begins. */
export interface Return {
  readonly how: string;
  readonly lost: string;
  readonly took_ms: number;
  readonly at: number;
}

const PAGE = 50;
const LARGE_PAGE = 200;
const ASK_AGAIN_MS = 120;

/** Notifications after which the status has changed in more than the page can tell by itself. */
const CHANGES_STATUS = new Set<string>([
  "session.state_changed",
  "session.agent_changed",
  "session.resume.completed",
  "session.resume.failed",
  "session.turn.started",
  "session.turn.stalled",
  "session.turn.completed",
  "permission.requested",
  "permission.resolved",
  "message.queue.changed",
]);

export class SessionStore implements Follower {
  readonly transcript = new Transcript();
  readonly session = signal<SessionView | undefined>(undefined);
  readonly status = signal<Status | undefined>(undefined);
  readonly turn = signal<Turn | null>(null);
  readonly queue = signal<readonly Queued[]>([]);
  readonly held = signal("");
  readonly permissions = signal<readonly PermissionRequest[]>([]);
  readonly mode = signal<string | null>(null);
  readonly modes = signal<readonly Mode[]>([]);
  readonly options = signal<readonly Option[]>([]);
  readonly hasEarlier = signal(false);
  /** How many older messages have come that are not shown yet. */
  readonly onTheWay = signal(0);
  readonly returned = signal<Return | undefined>(undefined);
  readonly silentFor = signal(0);
  /** Why the session cannot be shown: it is not there (any more). */
  readonly gone = signal<Error | undefined>(undefined);

  private boot = "";
  private seq = 0;
  private known = false;
  private isFollowing = false;
  private changes = 0; // how many notifications have changed the status
  private asked: ReturnType<typeof setTimeout> | undefined;
  private loading: Promise<void> | undefined;

  constructor(
    private readonly connection: Connection,
    readonly taskId: string,
    readonly sessionId: string,
  ) {}

  /** Follow the session, until the returned function is called. */
  open(): () => void {
    const leave = [this.connection.listen((notification) => this.hear(notification)), this.connection.follow(this)];
    return () => {
      clearTimeout(this.asked);
      for (const one of leave) one();
    };
  }

  cursor(): { boot_id: string; seq: number } | undefined {
    return this.known ? { boot_id: this.boot, seq: this.seq } : undefined;
  }

  caughtUp(
    answer:
      | Snapshot
      | {
          readonly gap: false;
          readonly boot_id: string;
          readonly seq: number;
          readonly events: readonly Notification[];
        },
  ): void {
    batch(() => {
      if (answer.gap) this.replaceAll(answer);
      else for (const event of answer.events) this.follow(event);
      this.boot = answer.boot_id;
      this.seq = answer.seq;
      this.known = true;
      this.isFollowing = true;
    });
    if (!answer.gap) this.askSoon(); // the time away may have changed what no event tells
  }

  cutOff(): void {
    this.isFollowing = false;
  }

  refused(error: Error): void {
    this.gone.value = error;
  }

  /** Take a fresh answer of task.session.status. */
  applyStatus(status: Status): void {
    batch(() => {
      this.status.value = status;
      this.turn.value = status.turn;
      this.silentFor.value = status.stalled_s;
    });
  }

  /** Load the page before the oldest message; one at a time. */
  loadEarlier(limit = PAGE): Promise<void> {
    this.loading ??= this.load(limit).finally(() => (this.loading = undefined));
    return this.loading;
  }

  /** Load older messages until the one with this place is here, or no more come. They are shown together. */
  async reach(place: number): Promise<void> {
    while (this.loading) await this.loading;
    await (this.loading = this.loadDownTo(place, LARGE_PAGE).finally(() => (this.loading = undefined)));
  }

  private load(limit: number): Promise<void> {
    return this.loadDownTo((this.transcript.firstSeq() ?? 1) - 1, limit);
  }

  private async loadDownTo(place: number, limit: number): Promise<void> {
    const start = this.transcript.firstSeq();
    const pages: (readonly Message[])[] = [];
    let before = start;
    let hasMore = this.hasEarlier.peek();
    try {
      while (hasMore && before !== undefined && before > place) {
        const page = await this.connection.request("message.list", { session_id: this.sessionId, before, limit });
        pages.unshift(page.messages);
        before = page.messages[0]?.seq ?? undefined;
        hasMore = page.has_more;
        this.onTheWay.value += page.messages.length;
      }
    } catch {
      // The connection is lost: what has come is shown, and whoever scrolls asks again.
    }
    batch(() => {
      this.onTheWay.value = 0;
      if (start !== this.transcript.firstSeq()) return; // another snapshot came meanwhile
      this.transcript.prepend(pages.flat());
      this.hasEarlier.value = hasMore;
    });
  }

  private replaceAll(snapshot: Snapshot): void {
    const lastTurn = this.status.peek()?.last_turn?.id;
    const isOtherBoot = this.known && snapshot.boot_id !== this.boot;
    this.replace(snapshot);
    if (!isOtherBoot) return;
    // Another tab may have brought the session back before this one heard of it: its agent then began in this boot.
    const { status } = snapshot;
    const isBack = status.is_agent_running && status.runtime === "standalone" && status.turn === null;
    const isNews = isBack && status.last_turn?.id === lastTurn;
    this.returned.value = isNews ? { how: status.how, lost: "", took_ms: 0, at: Date.now() } : undefined;
  }

  private replace(snapshot: Snapshot): void {
    this.transcript.reset(snapshot.messages);
    this.hasEarlier.value = snapshot.messages_left_out === true || (this.transcript.firstSeq() ?? 1) > 1;
    this.session.value = snapshot.session;
    this.queue.value = snapshot.queue;
    this.held.value = snapshot.session.queue_held;
    this.permissions.value = snapshot.permissions;
    this.mode.value = snapshot.mode;
    this.modes.value = snapshot.modes ?? [];
    this.options.value = snapshot.options ?? [];
    this.gone.value = undefined;
    this.applyStatus(snapshot.status);
  }

  private hear(notification: Notification): void {
    const { session_id: session, task_id: task } = notification.payload;
    if (session === undefined) {
      if (task === this.taskId && notification.action === "task.deleted")
        this.gone.value = new Error("The task was deleted.");
      return;
    }
    if (session === this.sessionId && this.isFollowing) this.follow(notification);
  }

  private follow(notification: Notification): void {
    const seq = notification.payload.seq;
    if (seq !== undefined) {
      if (seq <= this.seq) return;
      this.seq = seq;
    }
    this.apply(notification);
    if (!CHANGES_STATUS.has(notification.action)) return;
    this.changes++;
    this.askSoon();
  }

  private apply(told: Notification): void {
    switch (told.action) {
      case "session.message.added":
      case "session.message.updated":
        if (told.payload.too_large) void this.fetch(told.payload.message_id);
        else this.transcript.put(told.payload.message);
        break;
      case "session.message.delta":
        this.append(told.payload);
        break;
      case "session.state_changed":
        this.changeState(told.payload.new_state, told.payload.error_message);
        break;
      case "session.agent_changed":
        this.patch({ is_agent_running: told.payload.is_agent_running });
        break;
      case "session.resume.progress":
        this.patch({ stage: told.payload.stage });
        break;
      case "session.resume.completed":
        this.comeBack(told.payload);
        break;
      case "session.resume.failed":
        this.patch({ stage: "", error: told.payload.message });
        break;
      case "session.turn.started":
        this.begin(told.payload.turn);
        break;
      case "session.turn.stalled":
        this.silentFor.value = told.payload.silent_s;
        break;
      case "session.turn.completed":
        this.turn.value = null;
        this.silentFor.value = 0;
        this.patch({ turn: null, last_turn: told.payload.turn });
        break;
      default:
        this.applyRest(told);
    }
  }

  private applyRest(told: Notification): void {
    switch (told.action) {
      case "permission.requested":
        this.permissions.value = [...this.withoutPermission(told.payload.request.id), told.payload.request];
        break;
      case "permission.resolved":
        this.permissions.value = this.withoutPermission(told.payload.request.id);
        break;
      case "message.queue.changed":
        this.queue.value = told.payload.queue;
        this.held.value = told.payload.held;
        this.patch({ queue_held: told.payload.held, queued: told.payload.queue.length });
        break;
      case "session.mode_changed":
        if (told.payload.mode !== undefined) this.mode.value = told.payload.mode;
        if (told.payload.modes) this.modes.value = told.payload.modes;
        break;
      case "session.options_changed":
        if (told.payload.options) this.options.value = told.payload.options;
        break;
    }
  }

  private append(delta: { message_id: string; offset: number; text: string; too_large?: boolean }): void {
    this.silentFor.value = 0;
    const missing = delta.too_large || this.transcript.append(delta.message_id, delta.offset, delta.text) === "more";
    if (missing) void this.fetch(delta.message_id);
  }

  private changeState(state: string, error: string): void {
    if (state === "DELETED") {
      this.gone.value = new Error("The session was deleted.");
      return;
    }
    if (this.session.value) this.session.value = { ...this.session.value, state, error_message: error };
    this.patch({ state, error });
  }

  private begin(turn: Turn): void {
    this.turn.value = turn;
    this.returned.value = undefined;
    this.silentFor.value = 0;
    this.patch({ turn, last_turn: turn, interrupted: false });
  }

  private comeBack(told: { how: string; lost: string; stages: Readonly<Record<string, number>> }): void {
    const took_ms = Object.values(told.stages).reduce((sum, one) => sum + one, 0);
    this.returned.value = { how: told.how, lost: told.lost, took_ms, at: Date.now() };
    this.patch({ stage: "", how: told.how, is_agent_running: true, needs_resume: false, error: "" });
  }

  private withoutPermission(id: string): readonly PermissionRequest[] {
    return this.permissions.value.filter((one) => one.id !== id);
  }

  private patch(change: Partial<Status>): void {
    if (this.status.value) this.status.value = { ...this.status.value, ...change };
  }

  /** Ask for the whole status once things have come to rest; one answer serves many notifications. */
  private askSoon(): void {
    clearTimeout(this.asked);
    this.asked = setTimeout(() => void this.ask(), ASK_AGAIN_MS);
  }

  private async ask(): Promise<void> {
    const changes = this.changes;
    try {
      const status = await this.connection.request("task.session.status", {
        task_id: this.taskId,
        session_id: this.sessionId,
      });
      if (this.changes === changes) this.applyStatus(status); // else it is older than what was told since (UI-2)
    } catch {
      // After the next connection there is a new answer.
    }
  }

  private async fetch(messageId: string | undefined): Promise<void> {
    if (messageId === undefined) return;
    try {
      this.transcript.put((await this.connection.request("message.get", { message_id: messageId })).message);
    } catch {
      // It is gone, or the connection is: the next snapshot has it.
    }
  }
}
