import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { go, pathOf } from "../router";
import { useServices } from "../services";
import type { SessionView } from "../wire/types";
import { clock } from "../words/time";

/** The sessions of a task, where there are several: each an attempt of its own. */
export function SessionSwitch({ taskId, sessionId, count }: { taskId: string; sessionId: string; count: number }) {
  const { connection } = useServices();
  const sessions = useSignal<readonly SessionView[]>([]);
  useEffect(() => {
    if (count < 2) return;
    connection.request("task.session.list", { task_id: taskId }).then(
      (answer) => (sessions.value = answer.sessions),
      () => undefined,
    );
  }, [count]);
  if (sessions.value.length < 2) return null;
  return (
    <select
      class="switch"
      aria-label="Session"
      value={sessionId}
      onChange={(event) => go(pathOf(taskId, event.currentTarget.value))}
    >
      {sessions.value.map((one, at) => (
        <option key={one.id} value={one.id}>
          {at + 1} · {one.agent} · {clock(one.created_at, Date.now())}
        </option>
      ))}
    </select>
  );
}
