import { useId } from "preact/hooks";
import type { SessionStore } from "../stores/session";
import { Refused } from "../wire/failures";
import type { PermissionRequest } from "../wire/types";
import { useAgentName, useServices } from "../services";
import { ActionButton } from "../ui/ActionButton";
import { Code } from "../markdown/Markdown";
import { detailsOf } from "./tool-details";

interface Choice {
  readonly id: string;
  readonly name: string;
  readonly kind: string;
}

/** The agent's questions, each with the agent's own options. The focus never goes there by itself. */
export function Permissions({ store, agent }: { store: SessionStore; agent: string }) {
  return (
    <>
      {store.permissions.value.map((request) => (
        <PermissionView key={request.id} request={request} store={store} agent={agent} />
      ))}
    </>
  );
}

function PermissionView({ request, store, agent }: { request: PermissionRequest; store: SessionStore; agent: string }) {
  const heading = useId();
  const name = useAgentName(agent);
  const choices = request.options.map(choiceOf);
  const answer = useAnswer(store, request);
  const keyed = (event: KeyboardEvent) => {
    const kind = event.key === "a" ? "allow" : event.key === "d" ? "reject" : "";
    const choice = kind && choices.find((one) => one.kind.startsWith(kind));
    if (choice) void answer(choice.id);
  };
  const title = typeof request.tool_call["title"] === "string" ? request.tool_call["title"] : "use a tool";
  return (
    <section
      class="permission"
      role="dialog"
      aria-labelledby={heading}
      tabIndex={-1}
      onKeyDown={keyed}
      data-request={request.id}
    >
      <h2 id={heading}>
        <span class="shape tone-needs" aria-hidden="true">
          ●
        </span>{" "}
        {name} asks: {title}
      </h2>
      {detailsOf(request.tool_call).map(
        (detail) => detail.kind === "text" && <Code text={detail.text} language={detail.language} />,
      )}
      <div class="actions">
        {choices.map((choice) => (
          <ActionButton
            key={choice.id}
            onAct={() => answer(choice.id)}
            kind={choice.kind.startsWith("reject") ? "danger" : "plain"}
          >
            {choice.name}
          </ActionButton>
        ))}
      </div>
    </section>
  );
}

function useAnswer(store: SessionStore, request: PermissionRequest): (option: string) => Promise<void> {
  const { connection } = useServices();
  return async (option_id) => {
    const ids = { session_id: store.sessionId, request_id: request.id };
    try {
      await connection.request("permission.respond", { ...ids, option_id });
    } catch (error) {
      if (!(error instanceof Refused && error.reason === "already_resolved")) throw error; // another tab was first
    }
  };
}

function choiceOf(option: Readonly<Record<string, unknown>>): Choice {
  return {
    id: String(option["option_id"]),
    name: String(option["name"] ?? option["option_id"]),
    kind: String(option["kind"] ?? ""),
  };
}
