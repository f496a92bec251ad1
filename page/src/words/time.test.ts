import { expect, test } from "vitest";
import { ago, elapsed, lasting } from "./time";

const NOW = Date.parse("2026-11-29T12:00:00Z");

test.each([
  [0, "now"],
  [44, "now"],
  [46, "1 m"],
  [3540, "59 m"],
  [7200, "2 h"],
  [3 * 86_400, "3 d"],
])("%i seconds ago", (seconds, words) => {
  expect(ago(new Date(NOW - seconds * 1000).toISOString(), NOW)).toBe(words);
});

test("a clock that runs behind the server's is no negative time", () => {
  expect(ago("2026-11-29T12:00:09Z", NOW)).toBe("now");
  expect(ago("nothing", NOW)).toBe("");
});

test.each([
  [120, "0.1 s"],
  [9_940, "9.9 s"],
  [12_400, "12 s"],
  [185_000, "3 m 5 s"],
])("%i ms last", (ms, words) => {
  expect(lasting(ms)).toBe(words);
});

test("a time that grows in view begins after its first second", () => {
  expect([elapsed(999), elapsed(1000), elapsed(61_900)]).toEqual(["", "1 s", "1 m 1 s"]);
});
