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

/** What is done seldom. Escape, a choice, and leaving it close it. */
export function Menu({ store }: { store: SessionStore }) {
  const { connection } = useServices();
  const menu = useRef<HTMLDetailsElement>(null);
  const shown = useSignal<"" | "log" | "rename" | "complete" | "delete">("");
  const ids = { task_id: store.taskId, session_id: store.sessionId };
  const state = store.status.value?.state ?? "";
  const isOver = state === "COMPLETED" || state === "CANCELLED";
  const close = () => {
    if (menu.current) menu.current.open = false;
  };
  const left = (event: FocusEvent) => {
    if (!menu.current?.contains(event.relatedTarget as Node | null)) close();
  };
  const another = async () => {
    const { session } = await connection.request("task.session.create", { task_id: store.taskId, from_session_id: store.sessionId });
    go(pathOf(store.taskId, session.id));
  };
  return (
    <>
      <details class="menu" ref={menu} onFocusOut={left}>
        <summary class="button plain" aria-label="More">⋯</summary>
        <div class="menu-items" onClick={close}>
          {!isOver && <ActionButton onAct={() => connection.request("task.session.stop", ids)}>Stop the session</ActionButton>}
          {state !== "COMPLETED" && <ActionButton onAct={() => (shown.value = "complete")}>Complete the task…</ActionButton>}
          {state !== "COMPLETED" && <ActionButton onAct={another} title="It begins with what is known here">Another session from here</ActionButton>}
          <ActionButton onAct={() => (shown.value = "rename")}>Rename…</ActionButton>
          <a class="button plain" href={`/api/sessions/${store.sessionId}/export`} download>Export</a>
          <ActionButton onAct={() => (shown.value = "log")}>Log</ActionButton>
          <CopyButton text={store.sessionId} label="Copy the session's id">Copy the id</CopyButton>
          <ActionButton kind="danger" onAct={() => (shown.value = "delete")}>Delete…</ActionButton>
        </div>
      </details>
      {shown.value === "log" && <LogDialog store={store} onClose={() => (shown.value = "")} />}
      {shown.value === "rename" && <RenameDialog store={store} onClose={() => (shown.value = "")} />}
      {shown.value === "complete" && <CompleteDialog store={store} onClose={() => (shown.value = "")} />}
      {shown.value === "delete" && <DeleteDialog store={store} onClose={() => (shown.value = "")} />}
    </>
  );
}
