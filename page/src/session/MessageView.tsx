import type { Entry, Placed } from "../stores/transcript";
import { Code, Markdown } from "../markdown/Markdown";
import { Clock } from "../ui/Time";
import { useAgentName } from "../services";
import { ToolCall } from "./ToolCall";

interface Properties {
  readonly entry: Entry;
  readonly agent: string;
  /** The same author spoke before, so the name is not repeated. */
  readonly goesOn: boolean;
}

/** One entry of the transcript. It is drawn again alone when it changes. */
export function MessageView({ entry, agent, goesOn }: Properties) {
  const message = entry.value;
  const name = useAgentName(agent);
  if (message.author_type === "system") return <Notice message={message} />;
  const author = message.author_type === "user" ? "You" : name;
  return (
    <article
      class={`message from-${message.author_type} ${goesOn ? "goes-on" : ""} ${message.seq === 1 ? "is-first" : ""}`}
      data-seq={message.seq}
    >
      <div class="author">{goesOn ? <span class="hidden">{author}</span> : author}</div>
      <div class="content">
        <Content message={message} />
      </div>
      <div class="when">
        <Clock stamp={message.created_at} />
      </div>
    </article>
  );
}

function Content({ message }: { message: Placed }) {
  if (message.author_type === "user") return <p class="said">{message.content}</p>;
  switch (message.type) {
    case "message":
      return message.metadata["raw"] ? <Other message={message} /> : <Markdown text={message.content} />;
    case "thinking":
      return (
        <details class="thinking">
          <summary>{message.metadata["streaming"] ? "Thinking…" : "Thought"}</summary>
          <Markdown text={message.content} />
        </details>
      );
    case "tool_call":
      return <ToolCall message={message} />;
    case "plan":
      return <Plan entries={message.metadata["entries"]} />;
    case "permission_request":
      return <Asked message={message} />;
    default:
      return <Other message={message} />;
  }
}

/** What the server itself says: one line between the messages. */
function Notice({ message }: { message: Placed }) {
  const tone = message.type === "error" ? "failed" : message.metadata["kind"] === "workspace" ? "needs" : "quiet";
  return (
    <article class={`notice tone-${tone}`} data-seq={message.seq} data-kind={String(message.metadata["kind"] ?? "")}>
      <p>{message.content}</p>
      <div class="when">
        <Clock stamp={message.created_at} />
      </div>
    </article>
  );
}

const STEPS: Readonly<Record<string, readonly [string, string]>> = {
  completed: ["✓", "done"],
  in_progress: ["◐", "under way"],
};

function Plan({ entries }: { entries: unknown }) {
  const steps = Array.isArray(entries) ? (entries as { content?: unknown; status?: unknown }[]) : [];
  return (
    <ul class="plan" aria-label="Plan">
      {steps.map((step) => {
        const [shape, words] = STEPS[String(step.status)] ?? ["○", "to do"];
        return (
          <li>
            <span aria-hidden="true">{shape}</span>
            <span class="hidden">{words}: </span> <span class="step">{String(step.content ?? "")}</span>
          </li>
        );
      })}
    </ul>
  );
}

const ANSWERS: Readonly<Record<string, string>> = {
  pending: "waits for your answer",
  cancelled: "was not answered",
  expired: "was asked before the agent ended, and can no longer be answered",
};

function Asked({ message }: { message: Placed }) {
  const { state, answer, options } = message.metadata;
  const chosen = (Array.isArray(options) ? options : []).find((one) => one?.option_id === answer);
  const words = state === "answered" ? String(chosen?.name ?? answer) : (ANSWERS[String(state)] ?? String(state));
  return (
    <p class="asked">
      <span class="tool-kind">asked</span> {message.content} <span class="faint">· {words}</span>
    </p>
  );
}

/** Of a kind that this page does not know: shown plainly (WIRE-3). */
function Other({ message }: { message: Placed }) {
  return (
    <details class="tool">
      <summary>
        <span class="tool-kind">{message.type === "unknown" ? "other" : message.type}</span>{" "}
        <span class="tool-title">{message.content}</span>
      </summary>
      <Code text={JSON.stringify(message.metadata["raw"] ?? message.metadata, null, 2)} language="json" />
    </details>
  );
}
