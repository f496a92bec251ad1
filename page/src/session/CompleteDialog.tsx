import { go } from "../router";
import { useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { ActionButton } from "../ui/ActionButton";
import { Dialog } from "../ui/Dialog";

/** Asks before a task is completed, because that is final. */
export function CompleteDialog({ store, onClose }: { store: SessionStore; onClose: () => void }) {
  const { connection } = useServices();
  const complete = async () => {
    await connection.request("task.complete", { task_id: store.taskId });
    go("/");
  };
  return (
    <Dialog title="Complete this task?" onClose={onClose}>
      <p>Its agents end, and it takes no more messages. Transcript, folder and branch stay.</p>
      <div class="actions">
        <button type="button" class="button" onClick={onClose}>
          Not yet
        </button>
        <ActionButton kind="main" onAct={complete}>
          Complete
        </ActionButton>
      </div>
    </Dialog>
  );
}
