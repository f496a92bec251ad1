// The Markdown that agents write, as values. Whatever is not understood stays text; nothing is ever HTML (SEC-4).

export type Inline =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "strong" | "em" | "del"; readonly inlines: readonly Inline[] }
  | { readonly kind: "link"; readonly href: string; readonly inlines: readonly Inline[] };

export type Block =
  | { readonly kind: "paragraph"; readonly inlines: readonly Inline[] }
  | { readonly kind: "heading"; readonly level: number; readonly inlines: readonly Inline[] }
  | { readonly kind: "code"; readonly language: string; readonly text: string }
  | {
      readonly kind: "list";
      readonly ordered: boolean;
      readonly start: number;
      readonly items: readonly (readonly Block[])[];
    }
  | { readonly kind: "quote"; readonly blocks: readonly Block[] }
  | {
      readonly kind: "table";
      readonly head: readonly (readonly Inline[])[];
      readonly rows: readonly (readonly (readonly Inline[])[])[];
    }
  | { readonly kind: "rule" };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 6;

/** Cut a text into pieces that are drawn on their own: at blank lines outside of code. The last one may still grow. */
export function pieces(text: string): string[] {
  const found: string[] = [];
  let piece: string[] = [];
  let fence = "";
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (
      fence === "" &&
      line.trim() === "" &&
      piece.length > 0 &&
      !/^\s/.test(piece.at(-1)!) &&
      !ITEM.test(piece.at(-1)!)
    ) {
      found.push(piece.join("\n"));
      piece = [];
      continue;
    }
    if (mark !== undefined) fence = fence === "" ? mark : line.trim().startsWith(fence) ? "" : fence;
    piece.push(line);
  }
  if (piece.length > 0) found.push(piece.join("\n"));
  return found;
}

export function parse(text: string, depth = 0): Block[] {
  return new Lines(text.split("\n"), depth).blocks();
}

class Lines {
  private at = 0;

  constructor(
    private readonly lines: readonly string[],
    private readonly depth: number,
  ) {}

  blocks(): Block[] {
    const found: Block[] = [];
    while (this.at < this.lines.length) {
      if (this.line().trim() === "") this.at++;
      else found.push(this.block());
    }
    return found;
  }

  private line(): string {
    return this.lines[this.at] ?? "";
  }

  private block(): Block {
    const line = this.line();
    const heading = HEADING.exec(line);
    if (FENCE.test(line)) return this.code();
    if (heading) return (this.at++, { kind: "heading", level: heading[1]!.length, inlines: inline(heading[2]!) });
    if (RULE.test(line)) return (this.at++, { kind: "rule" });
    if (this.depth < DEEPEST && QUOTE.test(line)) return this.quote();
    if (this.depth < DEEPEST && ITEM.test(line)) return this.list();
    if (line.includes("|") && DIVIDER.test(this.lines[this.at + 1] ?? "")) return this.table();
    return this.paragraph();
  }

  private code(): Block {
    const [, mark = "", language = ""] = FENCE.exec(this.line()) ?? [];
    const text: string[] = [];
    for (this.at++; this.at < this.lines.length; this.at++) {
      if (this.line().trim().startsWith(mark) && this.line().trim().replaceAll(mark[0]!, "") === "") {
        this.at++;
        break;
      }
      text.push(this.line());
    }
    return { kind: "code", language, text: text.join("\n") };
  }

  private quote(): Block {
    const inner: string[] = [];
    for (let match = QUOTE.exec(this.line()); match; match = QUOTE.exec(this.line()))
      (inner.push(match[1]!), this.at++);
    return { kind: "quote", blocks: parse(inner.join("\n"), this.depth + 1) };
  }

  private list(): Block {
    const [, indent = "", mark = ""] = ITEM.exec(this.line()) ?? [];
    const ordered = /\d/.test(mark);
    const items: Block[][] = [];
    for (
      let match = ITEM.exec(this.line());
      match && this.begins(match, indent.length, ordered);
      match = ITEM.exec(this.line())
    ) {
      items.push(parse(this.item(match).join("\n"), this.depth + 1));
    }
    return { kind: "list", ordered, start: ordered ? Number.parseInt(mark, 10) : 1, items };
  }

  private begins(match: RegExpExecArray, indent: number, ordered: boolean): boolean {
    return match[1]!.length <= indent + 1 && /\d/.test(match[2]!) === ordered;
  }

  /** The lines of one item: what is indented below its mark belongs to it. */
  private item(match: RegExpExecArray): string[] {
    const inside = match[1]!.length + 2;
    const lines = [match[3]!];
    for (this.at++; this.at < this.lines.length; this.at++) {
      const line = this.line();
      const indent = line.length - line.trimStart().length;
      const goesOn =
        line.trim() === ""
          ? this.isIndented(this.at + 1, inside)
          : indent >= inside || !(ITEM.test(line) || lines.at(-1) === "");
      if (!goesOn) break;
      lines.push(line.slice(Math.min(indent, match[1]!.length + match[2]!.length + 1)));
    }
    while (this.line().trim() === "" && ITEM.test(this.lines[this.at + 1] ?? "")) this.at++;
    return lines;
  }

  private isIndented(at: number, by: number): boolean {
    const line = this.lines[at] ?? "";
    return line.trim() !== "" && line.length - line.trimStart().length >= by;
  }

  private table(): Block {
    const head = cells(this.line());
    const rows: Inline[][][] = [];
    for (this.at += 2; this.line().includes("|"); this.at++) rows.push(cells(this.line()));
    return { kind: "table", head, rows };
  }

  private paragraph(): Block {
    const lines = [this.line()];
    for (this.at++; this.at < this.lines.length && this.isPlain(this.line()); this.at++) lines.push(this.line());
    return { kind: "paragraph", inlines: inline(lines.join("\n")) };
  }

  private isPlain(line: string): boolean {
    return line.trim() !== "" && !FENCE.test(line) && !HEADING.test(line) && !QUOTE.test(line) && !ITEM.test(line);
  }
}

function cells(line: string): Inline[][] {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => inline(cell.trim()));
}

const MARKS: readonly {
  readonly find: RegExp;
  readonly make: (match: RegExpExecArray, depth: number) => Inline | undefined;
}[] = [
  {
    find: /(`+)(?!`)([\s\S]*?[^`])\1(?!`)/y,
    make: (match) => ({ kind: "code", text: match[2]!.replace(/^ (.*) $/s, "$1") }),
  },
  {
    find: /!?\[([^\]\n]{0,500})\]\(([^()\s]{1,2000})(?:\s+"[^"\n]*")?\)/y,
    make: (match, depth) => link(match[2]!, inline(match[1] || match[2]!, depth)),
  },
  { find: /<(https?:\/\/[^\s<>]{1,2000})>/y, make: (match) => link(match[1]!, [{ kind: "text", text: match[1]! }]) },
  {
    find: /https?:\/\/[^\s<>"'`)\]]{1,2000}[^\s<>"'`)\].,;:!?]/y,
    make: (match) => link(match[0], [{ kind: "text", text: match[0] }]),
  },
  {
    find: /(\*\*|__)(?=\S)([\s\S]{1,5000}?\S)\1(?!\w)/y,
    make: (match, depth) => ({ kind: "strong", inlines: inline(match[2]!, depth) }),
  },
  {
    find: /(\*)(?=[^\s*])([^*\n]{0,2000}?[^\s*])\*(?![\w*])/y,
    make: (match, depth) => ({ kind: "em", inlines: inline(match[2]!, depth) }),
  },
  {
    find: /(_)(?=[^\s_])([^_\n]{0,2000}?[^\s_])_(?![\w_])/y,
    make: (match, depth) => ({ kind: "em", inlines: inline(match[2]!, depth) }),
  },
  {
    find: /~~(?=\S)([^~\n]{0,2000}?\S)~~/y,
    make: (match, depth) => ({ kind: "del", inlines: inline(match[1]!, depth) }),
  },
];
const BEGINNING = new Set("`![<h*_~");

export function inline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let plain = "";
  for (let at = 0; at < text.length;) {
    const mark =
      depth < DEEPEST && BEGINNING.has(text[at]!) && !isInsideWord(text, at) ? markAt(text, at, depth + 1) : undefined;
    if (mark === undefined) {
      plain += text[at] === "\\" && /[\\`*_~[\]()#>-]/.test(text[at + 1] ?? "") ? text[++at] : text[at];
      at++;
      continue;
    }
    if (plain !== "") found.push({ kind: "text", text: plain });
    plain = "";
    found.push(mark.inline);
    at += mark.length;
  }
  if (plain !== "") found.push({ kind: "text", text: plain });
  return found;
}

function isInsideWord(text: string, at: number): boolean {
  return (text[at] === "_" || text[at] === "h") && at > 0 && /\w/.test(text[at - 1]!);
}

function markAt(text: string, at: number, depth: number): { inline: Inline; length: number } | undefined {
  for (const { find, make } of MARKS) {
    find.lastIndex = at;
    const match = find.exec(text);
    const made = match && make(match, depth);
    if (made) return { inline: made, length: match[0].length };
  }
  return undefined;
}

/** Only addresses that a browser cannot be made to run. */
function link(href: string, inlines: readonly Inline[]): Inline | undefined {
  return /^(?:https?:\/\/|mailto:)/i.test(href) ? { kind: "link", href, inlines } : undefined;
}
