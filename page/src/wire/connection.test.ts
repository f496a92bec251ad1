// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Snapshot } from "./answers";
import { waitBefore } from "./backoff";
import { Connection, type Follower } from "./connection";
import { ConnectionLost, Refused } from "./failures";

/** The other end of a socket: what was asked, and what the test says. */
class FakeSocket {
  static readonly made: FakeSocket[] = [];
  readyState: number = WebSocket.CONNECTING;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: { id: string; action: string; payload: Record<string, unknown> }[] = [];

  constructor() {
    FakeSocket.made.push(this);
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(): void {
    this.readyState = WebSocket.CLOSED;
  }

  async open(boot = "boot1"): Promise<void> {
    this.readyState = WebSocket.OPEN;
    this.onopen?.();
    this.answer("task.subscribe", { success: true, boot_id: boot });
    await settled();
  }

  /** The server goes away. */
  async drop(): Promise<void> {
    this.readyState = WebSocket.CLOSED;
    this.onclose?.();
    await settled();
  }

  say(...lines: unknown[]): void {
    this.onmessage?.({
      data: lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line))).join("\n"),
    });
  }

  asked(action: string) {
    return this.sent.filter((one) => one.action === action);
  }

  response(action: string, payload: object): object {
    return { id: this.asked(action).at(-1)?.id, type: "response", action, payload };
  }

  answer(action: string, payload: object): void {
    this.say(this.response(action, payload));
  }
}

async function settled(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0);
}

function made(mayEnter?: () => Promise<boolean>): Connection {
  const connection = new Connection("ws://x/ws", () => new FakeSocket() as unknown as WebSocket, mayEnter);
  connection.start();
  return connection;
}

function last(): FakeSocket {
  return FakeSocket.made.at(-1)!;
}

class Recorder implements Follower {
  readonly sessionId = "s";
  readonly heard: string[] = [];
  private at: { boot_id: string; seq: number } | undefined;

  cursor() {
    return this.at;
  }

  cutOff() {
    this.heard.push("cut off");
  }

  caughtUp(answer: { gap: boolean; boot_id: string; seq: number }) {
    this.at = { boot_id: answer.boot_id, seq: answer.seq };
    this.heard.push(`${answer.gap ? "snapshot" : "missed"} ${answer.seq}`);
  }

  refused(error: Error) {
    this.heard.push(`refused ${error.message}`);
  }
}

const SNAPSHOT = { boot_id: "boot1", seq: 5, gap: true } as Snapshot;

beforeEach(() => {
  vi.useFakeTimers();
  FakeSocket.made.length = 0;
});
afterEach(() => {
  vi.useRealTimers();
});

describe("requests", () => {
  test("answers find their questions in any order; refusals carry code and reason", async () => {
    const connection = made();
    await last().open();
    const first = connection.request("message.get", { message_id: "a" });
    const second = connection.request("message.get", { message_id: "b" });
    const [one, two] = last().asked("message.get");
    last().say(
      { id: two!.id, type: "response", action: "message.get", payload: { message: "B" } },
      {
        id: one!.id,
        type: "error",
        action: "message.get",
        payload: { code: "CONFLICT", message: "No.", details: { reason: "expired" } },
      },
    );
    expect(await second).toEqual({ message: "B" });
    const refusal: unknown = await first.catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(Refused);
    expect(refusal).toMatchObject({ code: "CONFLICT", reason: "expired", message: "No." });
  });

  test("a request that waits when the connection is lost is told so, and one without a connection too", async () => {
    const connection = made();
    await last().open();
    const waiting = connection.request("health.check", {}).catch((error: unknown) => error);
    await last().drop();
    expect(await waiting).toBeInstanceOf(ConnectionLost);
    await expect(connection.request("health.check", {})).rejects.toBeInstanceOf(ConnectionLost);
  });

  test("UI-5 lines that are no JSON, unknown kinds and answers to nobody are ignored", async () => {
    const connection = made();
    await last().open();
    const heard: string[] = [];
    connection.listen((notification) => heard.push(notification.action));
    last().say(
      "no json",
      "[]",
      "null",
      { type: "wonder" },
      { id: "99", type: "response", payload: {} },
      { type: "notification", action: "new.thing", payload: {} },
    );
    expect(heard).toEqual(["new.thing"]);
  });
});

describe("coming back", () => {
  test("it tries for ever, with longer and longer waits, and tells boot and listeners each time", async () => {
    const connection = made();
    const boots: string[] = [];
    connection.whenOpen((boot) => boots.push(boot));
    await last().open();
    await last().drop();
    expect(connection.phase.value).toBe("lost");
    for (let attempt = 0; attempt < 50; attempt++) {
      await vi.advanceTimersByTimeAsync(10_000);
      await last().drop();
    }
    expect(FakeSocket.made.length).toBeGreaterThan(50);
    await vi.advanceTimersByTimeAsync(10_000);
    await last().open("boot2");
    expect([connection.phase.value, connection.lostAt.value, boots]).toEqual(["open", 0, ["boot1", "boot2"]]);
  });

  test("the wait grows to ten seconds, never beyond, and differs from page to page", () => {
    expect([0, 1, 2, 3].map((attempt) => waitBefore(attempt, 1))).toEqual([250, 500, 1000, 2000]);
    expect(waitBefore(1000, 1)).toBe(10_000);
    expect(waitBefore(1000, 0)).toBe(7500);
  });

  test("a person need not wait", async () => {
    const connection = made();
    await last().drop();
    const before = FakeSocket.made.length;
    connection.tryNow();
    expect(FakeSocket.made.length).toBe(before + 1);
  });

  test("a server that asks for a token is not asked again and again", async () => {
    const connection = made(async () => false);
    await last().drop();
    await vi.advanceTimersByTimeAsync(1000);
    await last().drop();
    expect(connection.phase.value).toBe("locked");
    const before = FakeSocket.made.length;
    await vi.advanceTimersByTimeAsync(9_000);
    expect(FakeSocket.made.length).toBe(before);
  });

  test("a server that lets one in and says nothing is given up, and tried again", async () => {
    const connection = made();
    const [first] = FakeSocket.made;
    first!.readyState = WebSocket.OPEN;
    first!.onopen?.();
    await vi.advanceTimersByTimeAsync(9_000);
    expect(FakeSocket.made.length).toBe(2);
    await last().open();
    expect(connection.phase.value).toBe("open");
  });

  test("a socket that only looks open is found out", async () => {
    const connection = made();
    await last().open();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(last().asked("health.check").length + FakeSocket.made.length).toBeGreaterThan(1);
    expect(FakeSocket.made.length).toBeGreaterThan(1);
    expect(connection.phase.value).not.toBe("open");
  });
});

describe("following a session", () => {
  test("the snapshot comes before what follows it in the same frame", async () => {
    const connection = made();
    await last().open();
    const follower = new Recorder();
    connection.listen(({ payload }) => follower.heard.push(`event ${(payload as { seq?: number }).seq}`));
    connection.follow(follower);
    last().say(last().response("session.subscribe", SNAPSHOT), {
      type: "notification",
      action: "x",
      payload: { session_id: "s", seq: 6 },
    });
    expect(follower.heard).toEqual(["snapshot 5", "event 6"]);
  });

  test("after a loss it goes on from its cursor", async () => {
    const connection = made();
    await last().open();
    const follower = new Recorder();
    connection.follow(follower);
    expect(last().asked("session.subscribe")[0]?.payload).toEqual({ session_id: "s" });
    last().answer("session.subscribe", SNAPSHOT);
    await last().drop();
    await vi.advanceTimersByTimeAsync(1_000);
    await last().open();
    expect(last().asked("session.subscribe")[0]?.payload).toEqual({
      session_id: "s",
      since: { boot_id: "boot1", seq: 5 },
    });
    last().answer("session.subscribe", { boot_id: "boot1", seq: 7, gap: false, events: [] });
    expect(follower.heard).toEqual(["snapshot 5", "cut off", "missed 7"]);
  });

  test("one that was left hears nothing more; a refusal is told", async () => {
    const connection = made();
    await last().open();
    const follower = new Recorder();
    const leave = connection.follow(follower);
    leave();
    last().answer("session.subscribe", SNAPSHOT);
    expect(follower.heard).toEqual([]);
    connection.follow(follower);
    last().say({
      id: last().asked("session.subscribe").at(-1)?.id,
      type: "error",
      action: "session.subscribe",
      payload: { code: "NOT_FOUND", message: "gone" },
    });
    expect(follower.heard).toEqual(["refused gone"]);
  });
});
