import { useRef } from "preact/hooks";
import type { Prompts } from "../stores/prompts";
import type { SessionStore } from "../stores/session";
import { useServices } from "../services";
import { ActionButton } from "../ui/ActionButton";

/** A narrow field has no room for more, and a phone no Shift+Enter. */
const HINT = matchMedia("(max-width: 800px)").matches
  ? "Message"
  : "Message · Enter sends, Shift+Enter makes a new line";

const CLOSED: Readonly<Record<string, string>> = {
  COMPLETED: "This task is completed",
  FAILED: "Its agent has to be started first",
  CANCELLED: "Start the session again to write",
};

/** Where one writes. Always open while the session takes prompts: what cannot be sent yet waits in view (UI-3, UI-6). */
export function Composer({ store, prompts }: { store: SessionStore; prompts: Prompts }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const state = store.status.value?.state ?? "";
  const closed = CLOSED[state] ?? "";
  const isEnded = closed !== "";
  const send = () => {
    if (prompts.draft.value.trim() === "" || isEnded) return;
    prompts.add(prompts.draft.value);
    prompts.draft.value = "";
    field.current?.focus();
  };
  const keyed = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())}>
      <label class="hidden" for="message">
        Message
      </label>
      <textarea
        id="message"
        ref={field}
        rows={1}
        value={prompts.draft.value}
        placeholder={closed || HINT}
        disabled={isEnded}
        onInput={(event) => (prompts.draft.value = event.currentTarget.value)}
        onKeyDown={keyed}
      />
      <button type="submit" class="button main" disabled={isEnded || prompts.draft.value.trim() === ""}>
        Send
      </button>
      <StopButton store={store} />
    </form>
  );
}

function StopButton({ store }: { store: SessionStore }) {
  const { connection } = useServices();
  if (store.turn.value === null) return null;
  const asked = store.turn.value.cancel_requested_at !== "";
  const cancel = () =>
    connection.request("task.session.cancel", { task_id: store.taskId, session_id: store.sessionId });
  return (
    <ActionButton onAct={cancel} title="Stop the turn ( . )">
      {asked ? "Stopping…" : "Stop"}
    </ActionButton>
  );
}
