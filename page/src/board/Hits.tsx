import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { pathOf } from "../router";
import { useServices } from "../services";
import { Ago } from "../ui/Time";
import type { Hit } from "../wire/answers";

const TYPED_MS = 250;

/** Where a text occurs in the transcripts. */
export function Hits({ text }: { text: string }) {
  const { connection, board } = useServices();
  const hits = useSignal<readonly Hit[]>([]);
  useEffect(() => {
    let isWanted = true;
    const typed = setTimeout(async () => {
      const answer = await connection.request("message.search", { text }).catch(() => ({ hits: [] }));
      if (isWanted) hits.value = answer.hits;
    }, TYPED_MS);
    return () => {
      isWanted = false;
      clearTimeout(typed);
    };
  }, [text]);
  if (hits.value.length === 0) return null;
  return (
    <section class="hits">
      <h2>
        In transcripts <span class="faint">{hits.value.length}</span>
      </h2>
      <ul>
        {hits.value.map((hit) => (
          <li key={hit.id}>
            <a href={pathOf(hit.task_id, hit.session_id)}>
              <span class="card-title">
                {board.entry(hit.task_id)?.task.title ?? "Task"}{" "}
                <span class="faint">
                  <Ago stamp={hit.created_at} />
                </span>
              </span>
              <span class="excerpt">{hit.excerpt}</span>
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}
