import type { Prompts } from "../stores/prompts";
import type { SessionStore } from "../stores/session";
import { useServices } from "../services";
import { ActionButton } from "../ui/ActionButton";

/** Prompts that no turn has taken: in the server's queue, or still in this browser. Both can be taken back. */
export function Waiting({ store, prompts }: { store: SessionStore; prompts: Prompts }) {
  const { connection } = useServices();
  const queue = store.queue.value;
  const unsent = prompts.unsent.value;
  if (queue.length + unsent.length === 0) return null;
  const withdraw = async (messageId: string, content: string) => {
    await connection.request("message.queue.cancel", { session_id: store.sessionId, message_id: messageId });
    prompts.putBack(content);
  };
  return (
    <ul class="waiting" aria-label="Messages that wait">
      {queue.map(({ message_id: id, content }) => (
        <li key={id}>
          <span class="faint">Queued</span>{" "}
          <span class="text">
            <span class="said">{content}</span>
          </span>
          <ActionButton onAct={() => withdraw(id, content)}>Withdraw</ActionButton>
        </li>
      ))}
      {unsent.map(({ id, content, refusal }) => (
        <li key={id}>
          <span class={refusal ? "tone-failed" : "faint"}>{refusal ? "Not sent" : "Sending"}</span>{" "}
          <span class="text">
            <span class="said">{content}</span>
            {refusal && <span class="tone-failed">{refusal}</span>}
          </span>
          {refusal && <ActionButton onAct={() => prompts.sendAgain(id)}>Try again</ActionButton>}
          {refusal && <ActionButton onAct={() => prompts.takeBack(id)}>Edit</ActionButton>}
        </li>
      ))}
    </ul>
  );
}
