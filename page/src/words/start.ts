// What one start did with the agent's memory, in a line between the messages.

import type { ResumeOutcome } from "../wire/types";
import { lasting } from "./time";

const HOW: Readonly<Record<string, string>> = {
  native: "its memory restored",
  injection: "new, with a summary",
  recap: "new, with a summary",
  idle: "new, without memory",
  fresh: "started fresh",
  attached: "it had gone on by itself",
};

/** "its memory restored in 0.9 s", or "" where there is nothing to tell. */
export function startWords({ how, stages }: Pick<ResumeOutcome, "how" | "stages">): string {
  const words = HOW[how] ?? "";
  if (how !== "native") return words;
  return `${words} in ${lasting(Object.values(stages).reduce((sum, one) => sum + one, 0))}`;
}
