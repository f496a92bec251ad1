import { useSignal } from "@preact/signals";
import type { Placed } from "../stores/transcript";
import { Code } from "../markdown/Markdown";
import { type Diff, type Detail, countsOf, detailsOf, linesOf } from "./tool-details";

const STATUS: Readonly<Record<string, readonly [string, string, string]>> = {
  pending: ["○", "working", "waits"],
  in_progress: ["◐", "working", "runs"],
  completed: ["✓", "good", "ok"],
  failed: ["✕", "failed", "failed"],
  cancelled: ["–", "quiet", "cancelled"],
  unknown: ["?", "needs", "may or may not have run"],
};

/** One tool call: a line, and its input and output when it is opened. */
export function ToolCall({ message }: { message: Placed }) {
  const isOpen = useSignal(false);
  const status = String(message.metadata["status"] ?? "");
  const [shape, tone, words] = STATUS[status] ?? ["○", "quiet", status];
  const details = detailsOf(message.metadata["tool_call"]);
  return (
    <details class="tool" onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
      <summary>
        <span class="tool-kind">{String(message.metadata["kind"] ?? "")}</span>
        <span class="tool-title">{message.content}</span>
        <Counts details={details} />
        <span class={`tool-status tone-${tone}`}>
          <span aria-hidden="true">{shape}</span> {words}
        </span>
      </summary>
      {isOpen.value && (details.length ? details.map(drawDetail) : <p class="faint">Nothing more was told.</p>)}
    </details>
  );
}

function Counts({ details }: { details: readonly Detail[] }) {
  const { added, removed } = countsOf(details);
  if (added + removed === 0) return null;
  return (
    <span class="counts">
      <span class="tone-good">+{added}</span> <span class="tone-failed">−{removed}</span>
    </span>
  );
}

function drawDetail(detail: Detail) {
  if (detail.kind === "diff") return <DiffView diff={detail} />;
  return (
    <section>
      <p class="detail-name">{detail.title}</p>
      <Code text={detail.text} language={detail.language} />
    </section>
  );
}

function DiffView({ diff }: { diff: Diff }) {
  return (
    <section>
      <p class="detail-name">{diff.path}</p>
      <pre class="diff" tabIndex={0}>
        {linesOf(diff).map(({ sign, text }) => (
          <span class={sign === "+" ? "added" : sign === "-" ? "removed" : ""}>{`${sign} ${text}\n`}</span>
        ))}
      </pre>
    </section>
  );
}
