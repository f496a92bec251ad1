import { useAgentName, useServices } from "../services";
import type { SessionStore } from "../stores/session";
import { CopyButton } from "../ui/CopyButton";
import { Shape } from "../ui/Shape";
import { placeOf } from "../words/place";
import { usageWords } from "../words/usage";
import { Menu } from "./Menu";
import { SessionSwitch } from "./SessionSwitch";
import { Settings } from "./Settings";

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
      <a href="/" class="back" aria-label="Board">
        ‹
      </a>
      <div class="what">
        <h1>{entry?.task.title ?? "Session"}</h1>
        <p class="facts">
          {session && (
            <>
              {agent} · {session.runtime}
              {session.worktree_branch && (
                <>
                  {" "}
                  ·{" "}
                  <CopyButton text={session.worktree_branch} label="Copy the branch">
                    {session.worktree_branch}
                  </CopyButton>
                </>
              )}
            </>
          )}
          {usage && <span title="The last turn"> · {usage}</span>}
        </p>
      </div>
      {place && (
        <p class="state">
          <Shape place={place} /> {place.words}
        </p>
      )}
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
