import { useEffect, useMemo } from "preact/hooks";
import { TaskList } from "../board/TaskList";
import { useSessionResumption } from "../hooks/domains/session/use-session-resumption";
import { useServices } from "../services";
import { Prompts } from "../stores/prompts";
import { SessionStore } from "../stores/session";
import { Starts } from "../stores/starts";
import { Composer } from "./Composer";
import { Header } from "./Header";
import { MomentView } from "./MomentView";
import { Permissions } from "./PermissionView";
import { TranscriptView } from "./TranscriptView";
import { Waiting } from "./Waiting";

interface Properties {
  readonly taskId: string;
  readonly sessionId: string;
  /** Where in the transcript to begin to read; undefined: at its end. */
  readonly place: number | undefined;
}

/** A session: its transcript first, whatever its agent does (HIST-4); opening it brings the agent back. */
export function SessionPage({ taskId, sessionId, place }: Properties) {
  const { connection, isResumeAutomatic } = useServices();
  const store = useMemo(() => new SessionStore(connection, taskId, sessionId), []);
  const prompts = useMemo(() => new Prompts(connection, taskId, sessionId), []);
  const starts = useMemo(() => new Starts(connection, sessionId), []);
  const options = useMemo(() => ({ isAutomatic: () => isResumeAutomatic.peek() }), []);
  useEffect(() => {
    const leave = [store.open(), prompts.open(), starts.open()];
    return () => leave.forEach((one) => one());
  }, []);
  const resumption = useSessionResumption(connection, taskId, sessionId, options);
  const agent = store.session.value?.agent ?? "";
  return (
    <div class="with-list">
      <TaskList current={taskId} />
      <main class="session">
        <Header store={store} />
        {store.gone.value ? (
          <Gone words={store.gone.value.message} />
        ) : (
          <>
            <TranscriptView store={store} starts={starts} agent={agent} place={place} />
            <div class="foot">
              <MomentView store={store} prompts={prompts} resumption={resumption} />
              <Permissions store={store} agent={agent} />
              <Waiting store={store} prompts={prompts} />
              <Composer store={store} prompts={prompts} />
            </div>
          </>
        )}
      </main>
    </div>
  );
}

function Gone({ words }: { words: string }) {
  return (
    <div class="empty">
      <p>{words}</p>
      <p>
        <a href="/">To the board</a>
      </p>
    </div>
  );
}
