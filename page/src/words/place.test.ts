import { expect, test } from "vitest";
import type { Status } from "../wire/answers";
import type { BoardEntry } from "../wire/types";
import { placeOf } from "./place";

function entry(state: string, status: Partial<Status> | null): BoardEntry {
  const whole = {
    state: "WAITING_FOR_INPUT",
    needs: "none",
    queue_held: "",
    stage: "",
    turn: null,
    error: "",
    ...status,
  };
  return { task: { state }, session: null, status: status && whole, sessions: 1 } as unknown as BoardEntry;
}

test.each<[string, BoardEntry, string, RegExp]>([
  ["waits for review", entry("REVIEW", {}), "review", /Waiting for you/],
  ["asks", entry("IN_PROGRESS", { needs: "permission", turn: {} as never }), "needs", /Asks: run tests/],
  ["wants a login", entry("REVIEW", { needs: "login" }), "needs", /log in/],
  ["was cut off", entry("REVIEW", { needs: "decision", queue_held: "interrupted" }), "needs", /cut off/],
  ["lost its memory", entry("REVIEW", { needs: "decision", queue_held: "token_rejected" }), "needs", /No longer/],
  ["failed", entry("FAILED", { state: "FAILED", needs: "decision", error: "no command" }), "needs", /no command/],
  ["works", entry("IN_PROGRESS", { state: "RUNNING", turn: {} as never }), "working", /Working/],
  ["comes back", entry("REVIEW", { stage: "restoring" }), "working", /restoring memory/],
  ["is not started", entry("CREATED", { state: "CREATED" }), "review", /Not started/],
  ["was stopped", entry("REVIEW", { state: "CANCELLED" }), "review", /Stopped/],
  ["is done", entry("COMPLETED", { state: "COMPLETED", needs: "decision" }), "done", /Completed/],
  ["has no session", entry("CREATED", null), "review", /No session/],
])("a task that %s", (_, of, column, words) => {
  const place = placeOf(of, "run tests");
  expect(place.column).toBe(column);
  expect(place.words).toMatch(words);
  expect(place.shape).not.toBe("");
});
