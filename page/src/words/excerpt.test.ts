import { expect, test } from "vitest";
import { pieces } from "./excerpt";

test("an excerpt is cut at its marks, which count characters and not halves", () => {
  expect(pieces("🍐 a quince tree", [[4, 6]])).toEqual([
    { text: "🍐 a ", isMarked: false },
    { text: "quince", isMarked: true },
    { text: " tree", isMarked: false },
  ]);
});

test("without a mark, and with one at each end, nothing is lost or empty", () => {
  expect(pieces("plain", [])).toEqual([{ text: "plain", isMarked: false }]);
  expect(
    pieces("ab", [
      [0, 1],
      [1, 1],
    ]),
  ).toEqual([
    { text: "a", isMarked: true },
    { text: "b", isMarked: true },
  ]);
  expect(pieces("", [])).toEqual([]);
});
