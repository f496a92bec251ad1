// One WebSocket for the whole page: requests with ids, notifications, and coming back for ever.

import { batch, signal } from "@preact/signals";
import type { Action, Answer, Notification } from "./answers";
import { waitBefore } from "./backoff";
import { ConnectionLost, Refused } from "./failures";
import { Inbox } from "./inbox";
import type { Requests } from "./types";

/** `locked`: the server asks for a token that this browser does not have. */
export type Phase = "connecting" | "open" | "lost" | "locked";

/** A session that the page follows. It is told everything behind the cursor that it gave, in order. */
export interface Follower {
  readonly sessionId: string;
  /** Where it is: the last number seen, and the boot that counted it. */
  cursor(): { boot_id: string; seq: number } | undefined;
  /** The connection is lost: what comes until `caughtUp` is not in order. */
  cutOff(): void;
  /** The answer of session.subscribe: a snapshot, or what was missed. */
  caughtUp(answer: Answer<"session.subscribe">): void;
  /** The subscription was refused, as for a session that is gone. */
  refused(error: Error): void;
}

interface Waiting<T> {
  resolve(answer: T): unknown;
  reject(error: Error): unknown;
}

const SILENCE_MS = 20_000;
const ANSWER_MS = 8_000;
const NORMAL_CLOSE = 1000;

export class Connection {
  readonly phase = signal<Phase>("connecting");
  /** When the connection was lost, and when it is tried next; milliseconds as of Date.now(), 0 while it is open. */
  readonly lostAt = signal(0);
  readonly nextTryAt = signal(0);
  /** Changes with each start of the backend; "" before the first answer. */
  readonly bootId = signal("");

  private socket: WebSocket | undefined;
  private attempt = 0;
  private lastId = 0;
  private heardAt = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private readonly inbox = new Inbox((lines) => batch(() => lines.forEach((line) => this.take(line))));
  private readonly waiting = new Map<string, Waiting<unknown>>();
  private readonly listeners = new Set<(notification: Notification) => void>();
  private readonly openListeners = new Set<(bootId: string) => void>();
  private readonly followers = new Map<string, Follower>();

  constructor(
    private readonly address: string,
    private readonly open: (address: string) => WebSocket = (to) => new WebSocket(to),
    private readonly mayEnter: () => Promise<boolean> = async () => true,
  ) {}

  /** Connect, and come back whenever the connection is lost, until `close`. */
  start(): void {
    this.connect();
    const seen = () => document.hidden || (this.tryNow(), this.probe());
    setInterval(() => this.probe(), SILENCE_MS / 2);
    addEventListener("online", seen);
    addEventListener("pageshow", seen);
    document.addEventListener("visibilitychange", seen);
  }

  /** Try at once instead of waiting. */
  tryNow(): void {
    if (this.socket === undefined && this.phase.value !== "connecting") this.connect();
  }

  /** Ask for one action. Rejects with Refused, or with ConnectionLost: then the server may have it or not. */
  request<A extends Action>(action: A, payload: Requests[A]): Promise<Answer<A>> {
    return new Promise((resolve, reject) => this.send(action, payload, { resolve, reject }));
  }

  /** Hear every notification, until the returned function is called. */
  listen(listener: (notification: Notification) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Be told each time the connection stands (and now, if it does), with the backend's boot id. */
  whenOpen(listener: (bootId: string) => void): () => void {
    this.openListeners.add(listener);
    if (this.phase.value === "open") listener(this.bootId.value);
    return () => this.openListeners.delete(listener);
  }

  /** Follow a session over every loss of the connection, until the returned function is called. */
  follow(follower: Follower): () => void {
    this.followers.set(follower.sessionId, follower);
    if (this.phase.value === "open") this.subscribe(follower);
    return () => {
      if (this.followers.get(follower.sessionId) !== follower) return;
      this.followers.delete(follower.sessionId);
      this.request("session.unsubscribe", { session_id: follower.sessionId }).catch(() => undefined);
    };
  }

  /** Subscribe from the follower's cursor. Its answer is handed over before any later line of the same frame. */
  subscribe(follower: Follower): void {
    const isFollowed = () => this.followers.get(follower.sessionId) === follower;
    const since = follower.cursor();
    this.send(
      "session.subscribe",
      { session_id: follower.sessionId, ...(since && { since }) },
      {
        resolve: (answer) => isFollowed() && follower.caughtUp(answer),
        reject: (error) => error instanceof Refused && isFollowed() && follower.refused(error),
      },
    );
  }

  private send<A extends Action>(action: A, payload: Requests[A], waiting: Waiting<Answer<A>>): void {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN) return void waiting.reject(new ConnectionLost());
    const id = String(++this.lastId);
    this.waiting.set(id, waiting as Waiting<unknown>);
    socket.send(JSON.stringify({ id, type: "request", action, payload }));
  }

  private connect(): void {
    clearTimeout(this.retry);
    this.drop();
    this.nextTryAt.value = 0;
    if (this.lostAt.value === 0) this.phase.value = "connecting";
    const socket = this.open(this.address);
    this.socket = socket;
    socket.onopen = () => void this.opened(socket);
    socket.onmessage = (event) => socket === this.socket && this.hear(String(event.data));
    socket.onclose = () => socket === this.socket && void this.lost();
    // A server that is frozen lets one in and then says nothing.
    setTimeout(() => socket === this.socket && this.phase.value !== "open" && void this.lost(), ANSWER_MS);
  }

  private async opened(socket: WebSocket): Promise<void> {
    this.heardAt = Date.now();
    let bootId: string;
    try {
      bootId = (await this.request("task.subscribe", {})).boot_id;
    } catch {
      socket.close(); // a server that is just stopping
      return;
    }
    if (socket !== this.socket) return;
    this.attempt = 0;
    batch(() => {
      this.bootId.value = bootId;
      this.phase.value = "open";
      this.lostAt.value = 0;
    });
    for (const follower of this.followers.values()) this.subscribe(follower);
    for (const listener of [...this.openListeners]) listener(bootId);
  }

  private async lost(): Promise<void> {
    this.drop();
    const attempt = this.attempt++;
    batch(() => {
      if (this.lostAt.value === 0) this.lostAt.value = Date.now();
      this.phase.value = "lost";
    });
    this.schedule(waitBefore(attempt, Math.random()));
    if (attempt > 0 && !(await this.mayEnter()) && this.socket === undefined) this.lock();
  }

  private schedule(wait: number): void {
    this.nextTryAt.value = Date.now() + wait;
    this.retry = setTimeout(() => this.connect(), wait);
  }

  private lock(): void {
    clearTimeout(this.retry);
    this.nextTryAt.value = 0;
    this.phase.value = "locked";
  }

  /** Forget the socket, and tell whoever waits for its answers. */
  private drop(): void {
    const socket = this.socket;
    if (socket === undefined) return;
    this.socket = undefined;
    this.inbox.clear();
    socket.close(NORMAL_CLOSE);
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const one of waiting) one.reject(new ConnectionLost());
    for (const follower of this.followers.values()) follower.cutOff();
  }

  /** After a sleep, or behind a dead network, a socket may look open for ever: ask. */
  private probe(): void {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN || Date.now() - this.heardAt < SILENCE_MS) return;
    this.request("health.check", {}).catch(() => undefined);
    const asked = Date.now();
    setTimeout(() => {
      if (socket === this.socket && this.heardAt < asked) void this.lost();
    }, ANSWER_MS);
  }

  private hear(frame: string): void {
    this.heardAt = Date.now();
    this.inbox.add(frame.split("\n"));
  }

  private take(line: string): void {
    const message = parse(line);
    if (message?.type === "notification") {
      for (const listener of [...this.listeners]) listener(message as unknown as Notification);
      return;
    }
    const waiting = this.waiting.get(String(message?.id));
    if (message === undefined || waiting === undefined) return; // unknown kinds are ignored (UI-5)
    this.waiting.delete(String(message.id));
    if (message.type === "error")
      waiting.reject(new Refused(message.payload as ConstructorParameters<typeof Refused>[0]));
    else waiting.resolve(message.payload);
  }
}

interface Envelope {
  readonly id?: string;
  readonly type: string;
  readonly action: string;
  readonly payload: unknown;
}

function parse(line: string): Envelope | undefined {
  try {
    const message: unknown = JSON.parse(line);
    return typeof message === "object" && message !== null ? (message as Envelope) : undefined;
  } catch {
    return undefined;
  }
}
