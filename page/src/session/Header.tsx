import { useAgentName, useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { CopyButton } from "../ui/CopyButton";
import { Shape } from "../ui/Shape";
import type { Option } from "../wire/answers";
import { placeOf } from "../words/place";
import { usageWords } from "../words/usage";
import { Menu } from "./Menu";
import { SessionSwitch } from "./SessionSwitch";

/** What the session is, how it stands, and what can be done with it. */
export function Header({ store }: { store: SessionStore }) {
  const { board } = useServices();
  const session = store.session.value;
  const entry = board.entry(store.taskId);
  const status = store.status.value;
  const agent = useAgentName(session?.agent ?? "");
  const usage = usageWords(status?.last_turn?.usage ?? {});
  const place = entry && placeOf({ ...entry, status: status ?? entry.status }, store.permissions.value.map(titleOf)[0]);
  return (
    <header class="session-head">
      <a href="/" class="back" aria-label="Board">‹</a>
      <div class="what">
        <h1>{entry?.task.title ?? "Session"}</h1>
        <p class="facts">
          {session && <>{agent} · {session.runtime}{session.worktree_branch && <> · <CopyButton text={session.worktree_branch} label="Copy the branch">{session.worktree_branch}</CopyButton></>}</>}
          {usage && <span title="The last turn"> · {usage}</span>}
        </p>
      </div>
      {place && <p class="state"><Shape place={place} /> {place.words}</p>}
      <SessionSwitch taskId={store.taskId} sessionId={store.sessionId} count={entry?.sessions ?? 0} />
      <Settings store={store} />
      <Menu store={store} />
    </header>
  );
}

function titleOf(request: { readonly tool_call: Readonly<Record<string, unknown>> }): string {
  const title = request.tool_call["title"];
  return typeof title === "string" ? title : "";
}

/** Mode and options, where the agent offers them. */
function Settings({ store }: { store: SessionStore }) {
  const { connection, said } = useServices();
  const set = (asked: Promise<unknown>) => void asked.catch((error: Error) => (said.value = error.message));
  const modes = store.modes.value;
  return (
    <div class="settings">
      {modes.length > 1 && (
        <select aria-label="Mode" value={store.mode.value ?? ""} onChange={(event) => set(connection.request("session.set_mode", { session_id: store.sessionId, mode_id: event.currentTarget.value }))}>
          {modes.map((mode) => <option key={mode.id} value={mode.id}>{mode.name}</option>)}
        </select>
      )}
      {store.options.value.filter(isChoice).map((option) => (
        <select key={option.id} aria-label={option.name} value={String(option.currentValue ?? "")} onChange={(event) => set(connection.request("session.set_config_option", { session_id: store.sessionId, config_id: option.id, value: event.currentTarget.value }))}>
          {option.options?.map(({ value, name }) => <option key={value} value={value}>{name}</option>)}
        </select>
      ))}
    </div>
  );
}

function isChoice(option: Option): boolean {
  return (option.options?.length ?? 0) > 1 && option.id !== "mode";
}
