import { useSignal } from "@preact/signals";
import { useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { Dialog } from "../ui/Dialog";
import { wordsOf } from "../wire/failures";

/** Another title for a task. */
export function RenameDialog({ store, onClose }: { store: SessionStore; onClose: () => void }) {
  const { connection, board } = useServices();
  const title = useSignal(board.entry(store.taskId)?.task.title ?? "");
  const problem = useSignal("");
  const rename = async () => {
    try {
      await connection.request("task.update", { task_id: store.taskId, title: title.value.trim() });
      onClose();
    } catch (error) {
      problem.value = wordsOf(error);
    }
  };
  return (
    <Dialog title="Rename the task" onClose={onClose}>
      <form class="fields" onSubmit={(event) => (event.preventDefault(), void rename())}>
        <input
          aria-label="Title"
          autofocus
          value={title.value}
          onInput={(event) => (title.value = event.currentTarget.value)}
        />
        {problem.value && (
          <p class="tone-failed" role="alert">
            {problem.value}
          </p>
        )}
        <div class="actions">
          <button type="submit" class="button main" disabled={title.value.trim() === ""}>
            Rename
          </button>
        </div>
      </form>
    </Dialog>
  );
}
