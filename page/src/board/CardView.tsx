import { pathOf } from "../router";
import { useAgentName } from "../services";
import type { Card } from "../stores/board";
import { Shape } from "../ui/Shape";
import { Ago } from "../ui/Time";

/** One task on the board. */
export function CardView({ card: { entry, place } }: { card: Card }) {
  const { task, session, status } = entry;
  const agent = useAgentName(session?.agent ?? "");
  return (
    <a class="card task-link" href={session ? pathOf(task.id, session.id) : "/"} data-task={task.id}>
      <span class="card-title">
        <Shape place={place} /> <span class="card-name">{task.title}</span>
      </span>
      <span class="card-words">{place.words}</span>
      <span class="card-facts">
        {session && (
          <>
            {agent} · {session.runtime} ·{" "}
          </>
        )}
        <Ago stamp={session?.updated_at ?? task.updated_at} />
        {session?.worktree_branch && <span class="branch"> · {session.worktree_branch}</span>}
      </span>
      <span class="card-marks">
        {status?.interrupted && <span class="tone-needs">⟲ interrupted</span>}
        {status && status.queued > 0 && place.column !== "done" && <span>{status.queued} queued</span>}
        {entry.sessions > 1 && <span>{entry.sessions} sessions</span>}
      </span>
    </a>
  );
}
