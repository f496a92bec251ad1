import { expect, test } from "vitest";
import type { Card } from "./board";
import { newlyNeeding } from "./calls";

function card(id: string): Card {
  return { entry: { task: { id } } } as unknown as Card;
}

test("a task is called for once: not while it goes on needing somebody, again when it needs him anew", () => {
  const ids = (before: string[], now: string[]) =>
    newlyNeeding(new Set(before), now.map(card)).map((one) => one.entry.task.id);
  expect(ids([], ["a"])).toEqual(["a"]);
  expect(ids(["a"], ["a", "b"])).toEqual(["b"]);
  expect(ids(["a", "b"], ["b"])).toEqual([]);
  expect(ids(["b"], ["a", "b"])).toEqual(["a"]);
});
