// What a turn has used, as far as the agent told: its names differ, so only those that are known are said.

type Usage = Readonly<Record<string, unknown>>;

/** "12 k tokens · context 31 % full · $0.12", or "". */
export function usageWords(usage: Usage): string {
  return [tokens(usage), context(usage), cost(usage)].filter((one) => one !== "").join(" · ");
}

function tokens(usage: Usage): string {
  const total = number(usage, "totalTokens") ?? sum(number(usage, "inputTokens"), number(usage, "outputTokens"));
  if (total === undefined) return "";
  return total < 10_000 ? `${total} tokens` : `${Math.round(total / 1000)} k tokens`;
}

function context(usage: Usage): string {
  const [used, size] = [number(usage, "used"), number(usage, "size")];
  return used !== undefined && size ? `context ${Math.round((used / size) * 100)} % full` : "";
}

function cost(usage: Usage): string {
  const dollars = number(usage, "totalCostUsd");
  return dollars === undefined ? "" : `$${dollars.toFixed(2)}`;
}

function number(usage: Usage, name: string): number | undefined {
  const value = usage[name];
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : undefined;
}

function sum(a: number | undefined, b: number | undefined): number | undefined {
  return a === undefined && b === undefined ? undefined : (a ?? 0) + (b ?? 0);
}
