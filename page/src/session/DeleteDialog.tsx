import { useSignal } from "@preact/signals";
import { go } from "../router";
import { useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { ActionButton } from "../ui/ActionButton";
import { Dialog } from "../ui/Dialog";
import { Refused } from "../wire/failures";

const WOULD_LOSE = new Set(["uncommitted_changes", "unmerged_commits", "worktree_locked"]);

/** Asks before a task is deleted, and once more where work would be lost. */
export function DeleteDialog({ store, onClose }: { store: SessionStore; onClose: () => void }) {
  const { connection } = useServices();
  const warning = useSignal("");
  const remove = async () => {
    try {
      await connection.request("task.delete", { task_id: store.taskId, ...(warning.value !== "" && { force: true }) });
      go("/");
    } catch (error) {
      if (!(error instanceof Refused && WOULD_LOSE.has(error.reason))) throw error;
      warning.value = error.message;
    }
  };
  return (
    <Dialog title="Delete this task?" onClose={onClose}>
      <p>Its sessions, their transcripts and their folders go. The branch stays.</p>
      {warning.value && <p class="tone-failed">{warning.value}</p>}
      <div class="actions">
        <button type="button" class="button" onClick={onClose}>
          Keep it
        </button>
        <ActionButton kind="danger" onAct={remove}>
          {warning.value ? "Delete all the same" : "Delete"}
        </ActionButton>
      </div>
    </Dialog>
  );
}
