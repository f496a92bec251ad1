import { describe, expect, test } from "vitest";
import { highlight } from "./highlight";
import { type Block, type Inline, inline, parse, pieces } from "./parse";

function plain(inlines: readonly Inline[]): string {
  return inlines
    .map((one) => {
      switch (one.kind) {
        case "text":
          return one.text;
        case "code":
          return `[code ${one.text}]`;
        case "link":
          return `[link ${one.href} ${plain(one.inlines)}]`;
        default:
          return `[${one.kind} ${plain(one.inlines)}]`;
      }
    })
    .join("");
}

describe("inlines", () => {
  test.each([
    ["a `b` c", "a [code b] c"],
    ["``a ` b``", "[code a ` b]"],
    ["**bold** and *it* and ~~no~~", "[strong bold] and [em it] and [del no]"],
    ["**a `b` c**", "[strong a [code b] c]"],
    ["snake_case_name stays", "snake_case_name stays"],
    ["2 * 3 * 4", "2 * 3 * 4"],
    ["[x](https://a.b/c?d=1)", "[link https://a.b/c?d=1 x]"],
    ["see https://a.b/c.", "see [link https://a.b/c https://a.b/c]."],
    ["(https://a.b/c)", "([link https://a.b/c https://a.b/c])"],
    ["[x](javascript:alert(1))", "[x](javascript:alert(1))"],
    ["[x](data:text/html,1)", "[x](data:text/html,1)"],
    ["![pic](https://a.b/p.png)", "[link https://a.b/p.png pic]"],
    ["\\*not\\*", "*not*"],
    ["unclosed `code", "unclosed `code"],
    ["unclosed **bold", "unclosed **bold"],
    ["<b>no html</b>", "<b>no html</b>"],
  ])("%s", (text, expected) => {
    expect(plain(inline(text))).toBe(expected);
  });
});

function kinds(blocks: readonly Block[]): string[] {
  return blocks.map((one) => one.kind);
}

describe("blocks", () => {
  test("each kind", () => {
    const text =
      "# One\n\ntext\nmore\n\n- a\n- b\n\n1. c\n\n> quoted\n\n---\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |";
    expect(kinds(parse(text))).toEqual(["heading", "paragraph", "list", "list", "quote", "rule", "code", "table"]);
  });

  test("code keeps what is in it, and need not be closed while it streams", () => {
    expect(parse("```js\n# no heading\n\n- no list\n")).toEqual([
      { kind: "code", language: "js", text: "# no heading\n\n- no list\n" },
    ]);
  });

  test("lists nest, and an item may hold code", () => {
    const [list] = parse("- a\n  - b\n  - c\n- d\n\n  ```\n  code\n  ```\n- e");
    expect(list).toMatchObject({ kind: "list", ordered: false });
    const items = (list as Extract<Block, { kind: "list" }>).items;
    expect(items.map(kinds)).toEqual([["paragraph", "list"], ["paragraph", "code"], ["paragraph"]]);
  });

  test("numbers go on where they begin", () => {
    expect(parse("3. a\n4. b")).toMatchObject([{ kind: "list", ordered: true, start: 3 }]);
  });
});

test("a text is cut at blank lines, but not inside code, so that only its last piece grows", () => {
  expect(pieces("a\n\nb\n\n```\nc\n\nd\n```\n\ne")).toEqual(["a", "b", "```\nc\n\nd\n```", "e"]);
});

test("what would be slow to look at is not", () => {
  const hostile = [
    "*".repeat(20_000),
    "[".repeat(20_000),
    "`".repeat(20_001),
    "**a ".repeat(5000),
    "- ".repeat(5000),
    "> ".repeat(5000),
    "|".repeat(20_000),
  ];
  const began = performance.now();
  for (const text of hostile) parse(text);
  expect(performance.now() - began).toBeLessThan(5000);
});

test("colours leave the text as it is", () => {
  const code = "def f(x):  # say\n    return 'a' + str(12)\n";
  const parts = highlight(code, "python");
  expect(parts.map((part) => part.text).join("")).toBe(code);
  expect(parts.filter((part) => part.shade !== "plain").map((part) => `${part.shade} ${part.text}`)).toEqual([
    "keyword def",
    "comment # say",
    "keyword return",
    "string 'a'",
    "number 12",
  ]);
});
