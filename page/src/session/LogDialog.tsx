import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { SessionStore } from "../stores/session";
import { useServices } from "../services";
import { Dialog } from "../ui/Dialog";
import { Clock } from "../ui/Time";
import type { Answer } from "../wire/answers";
import { wordsOf } from "../wire/failures";
import { lasting } from "../words/time";
import { stageWords } from "../words/stages";

const BYTES = 10_000;

/** What the agent wrote to its standard error, and how its last starts went. */
export function LogDialog({ store, onClose }: { store: SessionStore; onClose: () => void }) {
  const { connection } = useServices();
  const logs = useSignal<Answer<"session.logs"> | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    connection.request("session.logs", { session_id: store.sessionId, limit: BYTES }).then(
      (answer) => (logs.value = answer),
      (error: unknown) => (problem.value = wordsOf(error)),
    );
  }, []);
  return (
    <Dialog title="Log" onClose={onClose} isWide>
      {problem.value && <p class="tone-failed">{problem.value}</p>}
      <h3>What the agent wrote to its log</h3>
      <pre class="log" tabIndex={0}>
        {logs.value?.stderr || "Nothing."}
      </pre>
      <h3>Starts</h3>
      <ul class="starts">
        {logs.value?.stages.map((one) => (
          <li key={one.id}>
            <Clock stamp={one.started_at} /> {one.how || one.error || "did not end"}
            <span class="faint">
              {" "}
              {Object.entries(one.stages)
                .map(([stage, took]) => `${stageWords(stage)} ${lasting(took)}`)
                .join(" · ")}
            </span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
