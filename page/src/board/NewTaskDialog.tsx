import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useMemo } from "preact/hooks";
import { go, pathOf } from "../router";
import { useServices } from "../services";
import { Dialog } from "../ui/Dialog";
import { NewTask, nameOf, placeName } from "./new-task";

/** What is to be done, by whom, and where. */
export function NewTaskDialog({ onClose }: { onClose: () => void }) {
  const services = useServices();
  const task = useMemo(() => new NewTask(services), []);
  const create = async () => {
    const made = await task.create();
    if (made === undefined) return;
    onClose();
    go(pathOf(made.task.id, made.session.id));
  };
  const keyed = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void create();
  };
  return (
    <Dialog title="New task" onClose={onClose}>
      <form class="fields" onKeyDown={keyed} onSubmit={(event) => (event.preventDefault(), void create())}>
        <Field name="What is to be done">
          {(id) => (
            <textarea
              id={id}
              rows={5}
              autofocus
              value={task.description.value}
              onInput={(event) => (task.description.value = event.currentTarget.value)}
            />
          )}
        </Field>
        <AgentField task={task} />
        <PlaceFields task={task} />
        {task.problem.value && (
          <p class="tone-failed" role="alert">
            {task.problem.value}
          </p>
        )}
        <div class="actions">
          <button type="submit" class="button main" disabled={!task.isPossible.value}>
            Create and start
          </button>
          <span class="faint hint">Ctrl+Enter does it too</span>
        </div>
      </form>
    </Dialog>
  );
}

function AgentField({ task }: { task: NewTask }) {
  const chosen = task.agent.value;
  return (
    <>
      <Field name="Agent">
        {(id) => (
          <select id={id} value={chosen?.name ?? ""} onChange={(event) => task.choose(event.currentTarget.value)}>
            {task.offered.value.map((agent) => (
              <option key={agent.name} value={agent.name} disabled={!agent.launchable}>
                {nameOf(agent)}
              </option>
            ))}
          </select>
        )}
      </Field>
      {chosen?.problem && <p class="tone-needs">{chosen.problem}</p>}
    </>
  );
}

/** Where it runs, and on what. */
function PlaceFields({ task }: { task: NewTask }) {
  const { connection } = useServices();
  useEffect(() => connection.whenOpen(() => void task.lookAround()), []);
  return (
    <>
      {task.runtimes.value.length > 1 && <RuntimeField task={task} />}
      <Line name="Repository" hint="a folder on the server; empty: a new folder of its own" text={task.repository} />
      {task.repository.value && (
        <Line name="Begins at branch" hint="empty: where the repository is now" text={task.branch} />
      )}
    </>
  );
}

/** Every runtime; of the one that was chosen, why it cannot be used, or what becomes of the agent in a restart. */
function RuntimeField({ task }: { task: NewTask }) {
  const where = task.where.value;
  return (
    <>
      <Field name="Where it runs">
        {(id) => (
          <select
            id={id}
            value={task.runtime.value}
            onChange={(event) => task.chooseRuntime(event.currentTarget.value)}
          >
            <option value="">As set up{task.runtime.value === "" && where ? `: ${where.name}` : ""}</option>
            {task.runtimes.value.map((one) => (
              <option key={one.name} value={one.name}>
                {placeName(one)}
              </option>
            ))}
          </select>
        )}
      </Field>
      {where && (
        <p class={where.available ? "faint" : "tone-needs"}>
          {where.available ? `When the backend restarts: ${where.on_backend_restart}.` : where.problem}
        </p>
      )}
    </>
  );
}

function Line({ name, hint, text }: { name: string; hint: string; text: Signal<string> }) {
  return (
    <Field name={name} hint={hint}>
      {(id) => (
        <input
          id={id}
          value={text.value}
          onInput={(event) => (text.value = event.currentTarget.value)}
          spellcheck={false}
        />
      )}
    </Field>
  );
}

function Field({ name, hint, children }: { name: string; hint?: string; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>
        {name} {hint && <span class="faint">{hint}</span>}
      </label>
      {children(id)}
    </div>
  );
}
