import { expect, test } from "vitest";
import type { Card } from "./board";
import { keyOf, newsAmong } from "./calls";

function card(key: string): Card {
  const [id, column] = key.split(" ");
  return { entry: { task: { id } }, place: { column } } as unknown as Card;
}

test("a task is called for once: not while it stays where it is, again when it comes back there", () => {
  const news = (before: string[], now: string[]) => newsAmong(new Set(before), now.map(card)).map(keyOf);
  expect(news([], ["a needs"])).toEqual(["a needs"]);
  expect(news(["a needs"], ["a needs", "b needs"])).toEqual(["b needs"]);
  expect(news(["a needs", "b needs"], ["b needs"])).toEqual([]);
  expect(news(["b needs"], ["a needs", "b needs"])).toEqual(["a needs"]);
});

test("from a question to the end of the turn is news", () => {
  expect(newsAmong(new Set(["a needs"]), [card("a review")]).map(keyOf)).toEqual(["a review"]);
});
