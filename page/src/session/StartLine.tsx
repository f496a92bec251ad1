import { Clock } from "../ui/Time";
import { startWords } from "../words/start";
import type { ResumeOutcome } from "../wire/types";

/** Between the messages: that the agent came back here, and what it remembered. */
export function StartLine({ start }: { start: ResumeOutcome }) {
  const words = startWords(start);
  if (words === "") return null;
  return (
    <p class="start">
      <span>
        agent back <Clock stamp={start.started_at} /> · {words}
      </span>
    </p>
  );
}
