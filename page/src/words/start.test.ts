import { expect, test } from "vitest";
import { startWords } from "./start";

test.each([
  ["native", "its memory restored in 0.9 s"],
  ["injection", "new, with a summary"],
  ["idle", "new, without memory"],
  ["already_running", ""],
])("%s", (how, words) => {
  expect(startWords({ how, stages: { workspace: 100, restoring: 800 } })).toBe(words);
});
