import { beforeEach, expect, test, vi } from "vitest";
import type { Notification } from "../wire/answers";
import type { Connection } from "../wire/connection";
import { BoardStore } from "./board";

function entry(id: string, words = "none"): object {
  const status = { state: "WAITING_FOR_INPUT", needs: words, queue_held: "", stage: "", turn: null };
  return { task: { id, state: "REVIEW", created_at: id }, session: { id: `s${id}` }, status, sessions: 1 };
}

/** A connection of which the test is the server: it answers when the test says so. */
class FakeConnection {
  readonly asked: {
    action: string;
    payload: { task_id?: string; cursor?: string };
    answer: (value: object) => Promise<void>;
  }[] = [];
  open: () => void = () => undefined;
  private hear: (notification: Notification) => void = () => undefined;

  listen(hear: (notification: Notification) => void) {
    this.hear = hear;
  }

  whenOpen(open: () => void) {
    this.open = open;
  }

  request(action: string, payload: object) {
    return new Promise((resolve) => {
      const answer = async (value: object) => {
        resolve(value);
        await vi.advanceTimersByTimeAsync(0);
      };
      this.asked.push({ action, payload, answer });
    });
  }

  tell(action: string, payload: object): void {
    this.hear({ action, payload } as unknown as Notification);
  }

  last() {
    return this.asked.at(-1)!;
  }
}

let connection: FakeConnection;
let board: BoardStore;

beforeEach(async () => {
  vi.useFakeTimers();
  connection = new FakeConnection();
  board = new BoardStore(connection as unknown as Connection);
  connection.open();
  await connection.last().answer({ permissions: [] });
});

function column(name: "needs" | "review"): string[] {
  return board.columns.value.get(name)!.map((card) => card.entry.task.id);
}

test("pages are read to the end, newest tasks first, and what changed is asked for again, once", async () => {
  await connection.last().answer({ entries: [entry("3"), entry("2")], next_cursor: "c" });
  await connection.last().answer({ entries: [entry("1")], next_cursor: null });
  expect([board.isLoaded.value, column("review")]).toEqual([true, ["3", "2", "1"]]);
  for (let n = 0; n < 9; n++) connection.tell("session.state_changed", { task_id: "2", session_id: "s2" });
  await vi.advanceTimersByTimeAsync(200);
  expect(connection.asked.filter((one) => one.payload.task_id === "2")).toHaveLength(1);
  await connection.last().answer({ entries: [entry("2", "decision")], next_cursor: null });
  expect([column("needs"), column("review")]).toEqual([["2"], ["3", "1"]]);
});

test("UI-2 a page that was read before a change does not take it back", async () => {
  await connection.last().answer({ entries: [entry("2")], next_cursor: "c" });
  const second = connection.last();
  connection.tell("session.state_changed", { task_id: "2", session_id: "s2" });
  await vi.advanceTimersByTimeAsync(200);
  await connection.last().answer({ entries: [entry("2", "decision")], next_cursor: null });
  await second.answer({ entries: [entry("1")], next_cursor: null });
  expect([column("needs"), column("review")]).toEqual([["2"], ["1"]]);
});

test("after a loss of the connection, what was deleted meanwhile is gone", async () => {
  await connection.last().answer({ entries: [entry("2"), entry("1")], next_cursor: null });
  connection.open();
  await connection.last().answer({ permissions: [] });
  await connection.last().answer({ entries: [entry("1")], next_cursor: null });
  expect(column("review")).toEqual(["1"]);
});

test("a question is named on the card of its session, until it is answered", async () => {
  await connection.last().answer({ entries: [entry("1", "permission")], next_cursor: null });
  const request = { id: "r", session_id: "s1", tool_call: { title: "Run it" }, state: "pending" };
  connection.tell("permission.requested", { task_id: "1", session_id: "s1", request });
  expect(board.columns.value.get("needs")![0]!.place.words).toBe("Asks: Run it");
  connection.tell("permission.resolved", {
    task_id: "1",
    session_id: "s1",
    request: { ...request, state: "answered" },
  });
  expect(board.columns.value.get("needs")![0]!.place.words).toBe("Asks for permission");
});
