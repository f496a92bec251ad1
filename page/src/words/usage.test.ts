import { expect, test } from "vitest";
import { usageWords } from "./usage";

test.each<[Record<string, unknown>, string]>([
  [{}, ""],
  [{ totalTokens: 812 }, "812 tokens"],
  [{ inputTokens: 12_000, outputTokens: 400 }, "12 k tokens"],
  [{ used: 31_000, size: 100_000 }, "context 31 % full"],
  [{ used: 31_000, size: 0 }, ""],
  [{ totalTokens: 10, totalCostUsd: 0.123 }, "10 tokens · $0.12"],
  [{ totalTokens: "many", used: null, size: -1 }, ""],
])("%j", (usage, words) => {
  expect(usageWords(usage)).toBe(words);
});
