import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { SessionStore } from "../stores/session";
import { useServices } from "../services";
import { Dialog } from "../ui/Dialog";
import type { Answer } from "../wire/answers";
import { wordsOf } from "../wire/failures";

/** The summary that goes with the next message, as the agent gets it. */
export function SummaryDialog({ store, onClose }: { store: SessionStore; onClose: () => void }) {
  const { connection } = useServices();
  const preview = useSignal<Answer<"session.recap.preview"> | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    connection.request("session.recap.preview", { session_id: store.sessionId }).then(
      (answer) => (preview.value = answer),
      (error: unknown) => (problem.value = wordsOf(error)),
    );
  }, []);
  const found = preview.value;
  return (
    <Dialog title="Summary for the agent" onClose={onClose} isWide>
      {problem.value && <p class="tone-failed">{problem.value}</p>}
      {found && (
        <p>
          {found.messages_used} of {found.messages_total} messages fit.
        </p>
      )}
      <pre class="log" tabIndex={0}>
        {found?.text ?? "…"}
      </pre>
    </Dialog>
  );
}
