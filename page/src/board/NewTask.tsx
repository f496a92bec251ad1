import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useMemo } from "preact/hooks";
import { go, pathOf } from "../router";
import { useServices } from "../services";
import { kept } from "../stores/kept";
import { Dialog } from "../ui/Dialog";
import type { Agent, Runtime } from "../wire/answers";
import { wordsOf } from "../wire/failures";
import { newId } from "../wire/ids";

const lastAgent = kept("agent", "");
const draft = kept("new-task", "");

/** What is to be done, by whom, and where. What was typed is kept until the task is there. */
export function NewTask({ onClose }: { onClose: () => void }) {
  const { connection, agents } = useServices();
  const runtimes = useSignal<readonly Runtime[]>([]);
  const runtime = useSignal("");
  const repository = useSignal("");
  const branch = useSignal("");
  const problem = useSignal("");
  const isBusy = useSignal(false);
  const id = useMemo(newId, []); // pressed twice, it is one task
  useEffect(() => {
    connection.request("runtime.list", {}).then((answer) => (runtimes.value = answer.runtimes), () => undefined);
  }, []);
  const offered = [...agents.value].sort((a, b) => rank(a) - rank(b));
  const chosen = offered.find((one) => one.name === lastAgent.value && one.launchable) ?? offered.find((one) => one.launchable);

  const create = async () => {
    if (draft.value.trim() === "" || chosen === undefined || isBusy.value) return;
    isBusy.value = true;
    problem.value = "";
    try {
      const { task, session } = await connection.request("task.create", {
        description: draft.value,
        agent: chosen.name,
        client_task_id: id,
        ...(runtime.value && { runtime: runtime.value }),
        ...(repository.value && { repository_path: repository.value }),
        ...(branch.value && { base_branch: branch.value }),
      });
      draft.value = "";
      onClose();
      go(pathOf(task.id, session.id));
    } catch (error) {
      problem.value = wordsOf(error);
    } finally {
      isBusy.value = false;
    }
  };
  const keyed = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void create();
  };
  return (
    <Dialog title="New task" onClose={onClose}>
      <form class="fields" onSubmit={(event) => (event.preventDefault(), void create())}>
        <Field name="What is to be done">
          {(id) => <textarea id={id} rows={5} autofocus value={draft.value} onInput={(event) => (draft.value = event.currentTarget.value)} onKeyDown={keyed} />}
        </Field>
        <Field name="Agent">
          {(id) => (
            <select id={id} value={chosen?.name ?? ""} onChange={(event) => (lastAgent.value = event.currentTarget.value)}>
              {offered.map((agent) => <option key={agent.name} value={agent.name} disabled={!agent.launchable}>{nameOf(agent)}</option>)}
            </select>
          )}
        </Field>
        {chosen?.problem && <p class="tone-needs">{chosen.problem}</p>}
        {runtimes.value.length > 1 && (
          <Field name="Where it runs">
            {(id) => (
              <select id={id} value={runtime.value} onChange={(event) => (runtime.value = event.currentTarget.value)}>
                <option value="">As set up</option>
                {runtimes.value.map(({ name }) => <option key={name} value={name}>{name}</option>)}
              </select>
            )}
          </Field>
        )}
        <Field name="Repository" hint="a folder on the server; empty: a new folder of its own">
          {(id) => <input id={id} value={repository.value} onInput={(event) => (repository.value = event.currentTarget.value)} spellcheck={false} />}
        </Field>
        {repository.value && (
          <Field name="Begins at branch" hint="empty: where the repository is now">
            {(id) => <input id={id} value={branch.value} onInput={(event) => (branch.value = event.currentTarget.value)} spellcheck={false} />}
          </Field>
        )}
        {problem.value && <p class="tone-failed" role="alert">{problem.value}</p>}
        <div class="actions">
          <button type="submit" class="button main" disabled={isBusy.value || draft.value.trim() === "" || chosen === undefined}>Create and start</button>
        </div>
      </form>
    </Dialog>
  );
}

function Field({ name, hint, children }: { name: string; hint?: string; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{name} {hint && <span class="faint">{hint}</span>}</label>
      {children(id)}
    </div>
  );
}

/** Those that could be started now come first, the others stay in their order. */
function rank({ problem, launchable, name }: Agent): number {
  const isDemo = name.startsWith("demo") ? 1 : 0;
  return problem === "" && launchable ? isDemo : launchable ? 2 : 3;
}

function nameOf({ display_name, launchable, found, problem }: Agent): string {
  if (!launchable) return `${display_name} · not in this version`;
  if (!found) return `${display_name} · not found`;
  return problem ? `${display_name} · ${problem}` : display_name;
}
