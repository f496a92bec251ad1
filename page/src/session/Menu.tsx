import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { go, pathOf } from "../router";
import { useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { ActionButton } from "../ui/ActionButton";
import { CopyButton } from "../ui/CopyButton";
import { CompleteDialog } from "./CompleteDialog";
import { DeleteDialog } from "./DeleteDialog";
import { LogDialog } from "./LogDialog";
import { RenameDialog } from "./RenameDialog";

type Shown = "" | "log" | "rename" | "complete" | "delete";

/** What is done seldom. Escape, a choice, and leaving it close it. */
export function Menu({ store }: { store: SessionStore }) {
  const menu = useRef<HTMLDetailsElement>(null);
  const shown = useSignal<Shown>("");
  const close = () => {
    if (menu.current) menu.current.open = false;
  };
  const left = (event: FocusEvent) => {
    if (!menu.current?.contains(event.relatedTarget as Node | null)) close();
  };
  const Shown = shown.value && DIALOGS[shown.value];
  return (
    <>
      <details class="menu" ref={menu} onFocusOut={left}>
        <summary class="button plain" aria-label="More">
          ⋯
        </summary>
        <div class="menu-items" onClick={close}>
          <Items store={store} show={(dialog) => (shown.value = dialog)} />
        </div>
      </details>
      {Shown && <Shown store={store} onClose={() => (shown.value = "")} />}
    </>
  );
}

const DIALOGS = { log: LogDialog, rename: RenameDialog, complete: CompleteDialog, delete: DeleteDialog } as const;

function Items({ store, show }: { store: SessionStore; show: (dialog: Shown) => void }) {
  const { connection } = useServices();
  const ids = { task_id: store.taskId, session_id: store.sessionId };
  const state = store.status.value?.state ?? "";
  const isFinal = state === "COMPLETED";
  const another = async () => {
    const asked = { task_id: store.taskId, from_session_id: store.sessionId };
    go(pathOf(store.taskId, (await connection.request("task.session.create", asked)).session.id));
  };
  return (
    <>
      {!isFinal && state !== "CANCELLED" && (
        <ActionButton onAct={() => connection.request("task.session.stop", ids)}>Stop the session</ActionButton>
      )}
      {!isFinal && <ActionButton onAct={() => show("complete")}>Complete the task…</ActionButton>}
      {!isFinal && (
        <ActionButton onAct={another} title="It begins with what is known here">
          Another session from here
        </ActionButton>
      )}
      <ActionButton onAct={() => show("rename")}>Rename…</ActionButton>
      <a class="button plain" href={`/api/sessions/${store.sessionId}/export`} download>
        Export
      </a>
      <ActionButton onAct={() => show("log")}>Log</ActionButton>
      <CopyButton text={store.sessionId} label="Copy the session's id">
        Copy the id
      </CopyButton>
      <ActionButton kind="danger" onAct={() => show("delete")}>
        Delete…
      </ActionButton>
    </>
  );
}
