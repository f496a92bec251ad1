import { beforeEach, describe, expect, test, vi } from "vitest";
import type { Notification, Snapshot, Status } from "../wire/answers";
import type { Connection, Follower } from "../wire/connection";
import type { Message } from "../wire/types";
import { SessionStore } from "./session";

const STATUS = { state: "WAITING_FOR_INPUT", stage: "", turn: null, stalled_s: 0 } as unknown as Status;

/** A connection of which the test is the server. */
class FakeConnection {
  readonly asked: string[] = [];
  status: Status = STATUS;
  follower: Follower | undefined;
  private hear: (notification: Notification) => void = () => undefined;

  listen(hear: (notification: Notification) => void) {
    this.hear = hear;
    return () => undefined;
  }

  follow(follower: Follower) {
    this.follower = follower;
    return () => undefined;
  }

  async request(action: string, _asked?: unknown): Promise<unknown> {
    this.asked.push(action);
    if (action === "message.get") return { message: message(1, "whole") };
    return this.status;
  }

  tell(action: string, seq: number | undefined, payload: object, session_id: string | undefined = "s"): void {
    this.hear({ action, payload: { task_id: "t", session_id, seq, ...payload } } as unknown as Notification);
  }
}

function message(seq: number, content: string): Message {
  return { id: `m${seq}`, seq, content, author_type: "agent", type: "message", metadata: {} } as unknown as Message;
}

function snapshot(seq: number, messages: Message[], boot_id = "boot1"): Snapshot {
  return {
    boot_id,
    seq,
    gap: true,
    session: { queue_held: "" },
    status: STATUS,
    turn: null,
    messages,
    queue: [],
    permissions: [],
    mode: null,
    modes: null,
    options: null,
  } as unknown as Snapshot;
}

let connection: FakeConnection;
let store: SessionStore;

beforeEach(() => {
  vi.useFakeTimers();
  connection = new FakeConnection();
  store = new SessionStore(connection as unknown as Connection, "t", "s");
  store.open();
});

function texts(): string[] {
  return [...store.transcript.newestFirst()].map((one) => one.content).reverse();
}

describe("cursors", () => {
  test("nothing counts before the snapshot, and nothing counts twice after it", () => {
    connection.tell("session.message.added", 3, { message: message(1, "early") });
    store.caughtUp(snapshot(5, [message(1, "one")]));
    connection.tell("session.message.updated", 5, { message: message(1, "older than the snapshot") });
    connection.tell("session.message.added", 6, { message: message(2, "two") });
    expect(texts()).toEqual(["one", "two"]);
    expect(store.cursor()).toEqual({ boot_id: "boot1", seq: 6 });
  });

  test("UI-5 what has no number does not move the cursor", () => {
    store.caughtUp(snapshot(5, []));
    connection.tell("session.new_thing", undefined, {});
    connection.tell("session.message.added", 6, { message: message(1, "one") });
    expect([texts(), store.cursor()?.seq]).toEqual([["one"], 6]);
  });

  test("between the loss and the answer board notifications of the session do not move the cursor", () => {
    store.caughtUp(snapshot(5, []));
    store.cutOff();
    connection.tell("session.turn.started", 9, { turn: { id: "x" } });
    expect(store.cursor()?.seq).toBe(5);
    const missed = {
      action: "session.message.added",
      payload: { task_id: "t", session_id: "s", seq: 6, message: message(1, "missed") },
    };
    store.caughtUp({ gap: false, boot_id: "boot1", seq: 9, events: [missed as unknown as Notification] });
    expect([texts(), store.cursor()?.seq]).toEqual([["missed"], 9]);
  });

  test("UI-5 a gap replaces what is shown", () => {
    store.caughtUp(snapshot(5, [message(1, "old")]));
    store.caughtUp(snapshot(2, [message(7, "new")], "boot2"));
    expect(texts()).toEqual(["new"]);
    expect(store.cursor()).toEqual({ boot_id: "boot2", seq: 2 });
    connection.tell("session.message.added", 3, { message: message(8, "newer") });
    expect(texts()).toEqual(["new", "newer"]);
  });
});

test("text that does not follow on is fetched whole", async () => {
  store.caughtUp(snapshot(1, [message(1, "abc")]));
  connection.tell("session.message.delta", 2, { message_id: "m1", offset: 9, text: "later" });
  await vi.advanceTimersByTimeAsync(0);
  expect(texts()).toEqual(["whole"]);
});

test("UI-2 a status that was overtaken is not shown, and another is asked for", async () => {
  store.caughtUp(snapshot(1, []));
  connection.tell("session.state_changed", 2, {
    old_state: "WAITING_FOR_INPUT",
    new_state: "RUNNING",
    error_message: "",
  });
  let answer: (status: Status) => void = () => undefined;
  connection.request = (action) => {
    connection.asked.push(action);
    return new Promise((resolve) => (answer = resolve as never));
  };
  await vi.advanceTimersByTimeAsync(200);
  connection.tell("session.turn.started", 3, { turn: { id: "turn1" } });
  answer({ ...STATUS, state: "STALE" } as Status);
  await vi.advanceTimersByTimeAsync(0);
  expect(store.status.value?.state).toBe("RUNNING");
  await vi.advanceTimersByTimeAsync(200);
  answer({ ...STATUS, state: "RUNNING", turn: { id: "turn1" } } as unknown as Status);
  await vi.advanceTimersByTimeAsync(0);
  expect(store.turn.value?.id).toBe("turn1");
  expect(connection.asked).toEqual(["task.session.status", "task.session.status"]);
});

test("many notifications cost one question, and a stream none", async () => {
  store.caughtUp(snapshot(1, [message(1, "")]));
  for (let seq = 2; seq < 50; seq++)
    connection.tell("session.state_changed", seq, { old_state: "", new_state: "RUNNING", error_message: "" });
  for (let seq = 50; seq < 500; seq++)
    connection.tell("session.message.delta", seq, { message_id: "m1", offset: seq - 50, text: "x" });
  await vi.advanceTimersByTimeAsync(1000);
  expect(connection.asked).toEqual(["task.session.status"]);
});

test("what is gone says so", () => {
  store.caughtUp(snapshot(1, []));
  connection.tell("task.deleted", undefined, {}, "");
  expect(store.gone.value).toBeUndefined();
  connection.tell("session.state_changed", 2, { old_state: "", new_state: "DELETED", error_message: "" });
  expect(store.gone.value?.message).toMatch(/deleted/);
});

describe("UI-1 a session that another tab has brought back", () => {
  const back = { ...STATUS, is_agent_running: true, runtime: "standalone", how: "native", last_turn: null };
  const again = (status: object) => ({ ...snapshot(1, [], "boot2"), status }) as unknown as Snapshot;

  test("is told in a tab that was open before", () => {
    store.caughtUp({ ...snapshot(5, []), status: { ...STATUS, last_turn: null } } as unknown as Snapshot);
    store.caughtUp(again(back));
    expect(store.returned.value?.how).toBe("native");
  });

  test.each([
    ["in the same boot", { ...again(back), boot_id: "boot1" }],
    ["while the agent is away", again({ ...back, is_agent_running: false })],
    ["of an agent that outlived the backend", again({ ...back, runtime: "detached" })],
    ["once a turn came after it", again({ ...back, last_turn: { id: "later" } })],
  ])("is no news %s", (_when, answer) => {
    store.caughtUp({ ...snapshot(5, []), status: { ...STATUS, last_turn: null } } as unknown as Snapshot);
    store.caughtUp(answer as unknown as Snapshot);
    expect(store.returned.value).toBeUndefined();
  });
});

describe("a place far above", () => {
  const pages = (first: number) => {
    connection.request = async (action: string, asked?: unknown) => {
      connection.asked.push(action);
      if (action !== "message.list") return STATUS as never;
      const { before, limit } = asked as { before: number; limit: number };
      const from = Math.max(first, before - limit);
      const messages = Array.from({ length: before - from }, (_, at) => message(from + at, `entry ${from + at}`));
      return { messages, has_more: from > 1 } as never;
    };
  };

  test("is loaded by pages, and no further", async () => {
    pages(1);
    store.caughtUp(snapshot(1, [message(1000, "newest")]));
    await store.reach(450);
    expect(store.transcript.firstSeq()).toBe(400);
    await store.reach(500);
    expect(connection.asked.filter((one) => one === "message.list")).toHaveLength(3);
  });

  test("is shown once it is there, and how far the way back is until then", async () => {
    pages(1);
    const counts: number[] = [];
    const lists: number[] = [];
    store.onTheWay.subscribe((count) => void counts.push(count));
    store.transcript.chunks.subscribe((chunks) => void lists.push(chunks.length));
    store.caughtUp(snapshot(1, [message(1000, "newest")]));
    await store.reach(450);
    expect(counts).toEqual([0, 200, 400, 600, 0]);
    expect(lists.filter((length) => length > 1)).toEqual([13]);
  });

  test("that cannot be reached ends the search", async () => {
    pages(900);
    store.caughtUp(snapshot(1, [message(1000, "newest")]));
    await store.reach(5);
    expect(store.transcript.firstSeq()).toBe(900);
  });
});
