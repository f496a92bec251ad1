import { expect, test } from "vitest";
import { countsOf, detailsOf, linesOf } from "./tool-details";

test("a diff shows what changed with three lines around it", () => {
  const before = "1\n2\n3\n4\n5\nold\n6\n7\n8\n9";
  const lines = linesOf({ kind: "diff", path: "a", before, after: before.replace("old", "new\nnewer") });
  expect(lines.map(({ sign, text }) => sign + text)).toEqual([
    " 3",
    " 4",
    " 5",
    "-old",
    "+new",
    "+newer",
    " 6",
    " 7",
    " 8",
  ]);
});

test("a new file is all added", () => {
  const details = detailsOf({ content: [{ type: "diff", path: "a", oldText: null, newText: "x\ny" }] });
  expect(countsOf(details)).toEqual({ added: 2, removed: 0 });
});

test("a command and its output are shown as text", () => {
  const details = detailsOf({
    rawInput: { command: "ls" },
    content: [{ type: "content", content: { type: "text", text: "a b" } }],
    rawOutput: { stdout: "a b" },
  });
  expect(details).toMatchObject([
    { title: "Command", text: "ls" },
    { title: "Output", text: "a b" },
  ]);
});

test.each([[undefined], [null], [7], [{ content: "text" }], [{ content: [7, null, {}] }], [{ rawInput: {} }]])(
  "whatever agents send: %j",
  (call) => {
    expect(() => detailsOf(call).map(String)).not.toThrow();
  },
);

test("a huge output is cut, and says so", () => {
  const [detail] = detailsOf({ rawOutput: "x".repeat(300_000) });
  expect(detail).toMatchObject({ kind: "text" });
  expect((detail as { text: string }).text).toMatch(/100000 more characters$/);
});
