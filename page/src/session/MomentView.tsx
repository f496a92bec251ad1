import { useSignal } from "@preact/signals";
import type { Prompts } from "../stores/prompts";
import type { SessionStore } from "../stores/session";
import type { SessionResumptionView } from "../hooks/domains/session/use-session-resumption";
import { useAgentName, useServices } from "../services";
import { ActionButton } from "../ui/ActionButton";
import { CopyButton } from "../ui/CopyButton";
import { now } from "../ui/now";
import { elapsed } from "../words/time";
import { type Moment, type MomentAction, momentOf } from "../words/moment";
import { LogDialog } from "./LogDialog";
import { SummaryDialog } from "./SummaryDialog";

const GO_ON = "Please go on where you were cut off.";

interface Properties {
  readonly store: SessionStore;
  readonly prompts: Prompts;
  readonly resumption: SessionResumptionView;
}

/** What is the matter with the session just now, in one line of fact and one of what was kept, and what goes on. */
export function MomentView({ store, prompts, resumption }: Properties) {
  const status = store.status.value;
  const agent = useAgentName(status?.agent ?? "");
  const shown = useSignal<"" | "log" | "summary">("");
  const act = useAct(store, prompts, resumption, (dialog) => (shown.value = dialog));
  const moment =
    status &&
    momentOf({
      agent,
      status,
      resumption: resumption.state.value,
      stage: resumption.stage.value,
      startedAt: resumption.startedAt.value,
      failure: resumption.failure.value,
      returned: store.returned.value,
      notice: lastNotice(store),
      unsure: unsureSteps(store),
      silentFor: store.silentFor.value,
    });
  return (
    <>
      <div class="moment-place" role="status">
        {moment && <Told moment={moment} act={act} />}
      </div>
      {shown.value === "log" && <LogDialog store={store} onClose={() => (shown.value = "")} />}
      {shown.value === "summary" && <SummaryDialog store={store} onClose={() => (shown.value = "")} />}
    </>
  );
}

function Told({ moment, act }: { moment: Moment; act: (action: MomentAction) => unknown }) {
  return (
    <div class={`moment edge-${moment.tone}`}>
      <p>
        <span class="fact">{moment.fact}</span>
        {moment.since !== undefined && (
          <span class="faint" aria-hidden="true">
            {" "}
            {elapsed(now.value - moment.since)}
          </span>
        )}
        {moment.kept && <span class="kept"> {moment.kept}</span>}
      </p>
      <div class="actions">
        {moment.actions.map((action) =>
          action.do === "copy" ? (
            <CopyButton key={action.label} text={action.text} label={action.label}>
              {action.label}
            </CopyButton>
          ) : (
            <ActionButton key={action.label} onAct={() => act(action)}>
              {action.label}
            </ActionButton>
          ),
        )}
      </div>
    </div>
  );
}

function useAct(
  store: SessionStore,
  prompts: Prompts,
  resumption: SessionResumptionView,
  show: (dialog: "log" | "summary") => void,
): (action: MomentAction) => unknown {
  const { connection } = useServices();
  const ids = { task_id: store.taskId, session_id: store.sessionId };
  return async (action) => {
    switch (action.do) {
      case "resume":
        return resumption.resume();
      case "cancel":
        return connection.request("task.session.cancel", ids);
      case "start":
        return connection.request("task.session.start", ids);
      case "send_again":
        return connection.request("turn.send_again", {
          session_id: store.sessionId,
          turn_id: store.status.value?.last_turn?.id ?? "",
        });
      case "go_on":
        return prompts.add(GO_ON);
      case "open_queue":
        return connection.request("message.queue.resume", ids);
      case "rebuild":
        await connection.request("workspace.rebuild", ids);
        if (store.status.value?.state !== "FAILED") return resumption.resume();
        return connection.request("task.session.recover", { ...ids, action: "resume" });
      case "recover":
        return connection.request("task.session.recover", { ...ids, action: action.how });
      case "log":
      case "summary":
        return show(action.do);
    }
  };
}

const LOOKED_BACK = 20;

/** The newest word of the server itself, unless somebody said something after it. */
function lastNotice(store: SessionStore) {
  let looked = 0;
  for (const message of store.transcript.newestFirst()) {
    if (message.author_type === "system") return message;
    if (message.author_type === "user" || ++looked > LOOKED_BACK) return undefined;
  }
  return undefined;
}

/** The tool calls of the newest turn that have no result and never will. */
function unsureSteps(store: SessionStore): readonly string[] {
  if (!store.status.value?.interrupted) return [];
  const found: string[] = [];
  for (const message of store.transcript.newestFirst()) {
    if (message.author_type === "user") break;
    if (message.type === "tool_call" && message.metadata["status"] === "unknown") found.unshift(message.content);
  }
  return found;
}
