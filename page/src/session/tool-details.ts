// What a tool call holds, as agents send it: content (texts, diffs, terminals), raw input, raw output.

export interface Diff {
  readonly kind: "diff";
  readonly path: string;
  readonly before: string;
  readonly after: string;
}

export interface Text {
  readonly kind: "text";
  readonly title: string;
  readonly text: string;
  readonly language: string;
}

export type Detail = Diff | Text;

export interface Line {
  readonly sign: "+" | "-" | " ";
  readonly text: string;
}

const AROUND = 3;
const LONGEST = 200_000; // characters; the export has the rest

export function detailsOf(call: unknown): Detail[] {
  if (!isRecord(call)) return [];
  const found: Detail[] = [];
  if (isWorthShowing(call["rawInput"])) found.push(text("Input", call["rawInput"]));
  for (const part of Array.isArray(call["content"]) ? call["content"] : []) found.push(...detailOf(part));
  const said = found.some((one) => one.kind === "diff" || one.title === "Output");
  if (!said && isWorthShowing(call["rawOutput"])) found.push(text("Output", call["rawOutput"]));
  return found;
}

function detailOf(part: unknown): Detail[] {
  if (!isRecord(part)) return [];
  if (part["type"] === "diff") {
    return [
      {
        kind: "diff",
        path: String(part["path"] ?? ""),
        before: String(part["oldText"] ?? ""),
        after: String(part["newText"] ?? ""),
      },
    ];
  }
  const content = part["content"];
  if (isRecord(content) && typeof content["text"] === "string") return [text("Output", content["text"])];
  return [text(String(part["type"] ?? "Content"), part)];
}

function text(title: string, value: unknown): Text {
  if (isRecord(value) && typeof value["command"] === "string" && Object.keys(value).length === 1)
    return text("Command", value["command"]);
  const shown = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const cut =
    shown.length > LONGEST ? `${shown.slice(0, LONGEST)}\n… ${shown.length - LONGEST} more characters` : shown;
  return {
    kind: "text",
    title,
    text: cut,
    language: title === "Command" ? "sh" : typeof value === "string" ? "text" : "json",
  };
}

function isWorthShowing(value: unknown): boolean {
  return value != null && value !== "" && !(isRecord(value) && Object.keys(value).length === 0);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** How many lines all diffs add and remove. */
export function countsOf(details: readonly Detail[]): { added: number; removed: number } {
  const lines = details.flatMap((one) => (one.kind === "diff" ? linesOf(one) : []));
  return {
    added: lines.filter((line) => line.sign === "+").length,
    removed: lines.filter((line) => line.sign === "-").length,
  };
}

function linesIn(text: string): string[] {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}

/** The lines of a diff: what differs between the common beginning and end, with three lines around it. */
export function linesOf({ before, after }: Diff): Line[] {
  const [old, now] = [linesIn(before), linesIn(after)];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const as =
    (sign: Line["sign"]) =>
    (one: string): Line => ({ sign, text: one });
  return [
    ...old.slice(Math.max(0, head - AROUND), head).map(as(" ")),
    ...old.slice(head, old.length - tail).map(as("-")),
    ...now.slice(head, now.length - tail).map(as("+")),
    ...old.slice(old.length - tail, old.length - tail + AROUND).map(as(" ")),
  ];
}
