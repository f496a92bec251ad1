import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { pathOf } from "../router";
import { useServices } from "../services";
import { Ago } from "../ui/Time";
import { type Piece, pieces } from "../words/excerpt";
import type { Answer } from "../wire/answers";
import type { Hit } from "../wire/types";

const TYPED_MS = 250;
const NOTHING: Answer<"message.search"> = { hits: [], complete: true };

interface Found {
  readonly text: string;
  readonly answer: Answer<"message.search">;
}

/** Where else a text occurs: in transcripts, and in titles of tasks that the board has not loaded. */
export function Hits({ text }: { text: string }) {
  const { connection, board } = useServices();
  const found = useSignal<Found>({ text: "", answer: NOTHING });
  useEffect(() => {
    let isWanted = true;
    const typed = setTimeout(async () => {
      const answer = await connection.request("message.search", { text }).catch(() => NOTHING);
      if (isWanted) found.value = { text, answer };
    }, TYPED_MS);
    return () => {
      isWanted = false;
      clearTimeout(typed);
    };
  }, [text]);
  const { hits: all, complete } = found.value.answer;
  const hits = all.filter((hit) => hit.type !== "title" || (hit.session_id && !board.entry(hit.task_id)));
  return (
    <>
      {hits.length > 0 && (
        <section class="hits">
          <h2>
            In transcripts <span class="faint">{hits.length}</span>
          </h2>
          <ul>
            {hits.map((hit) => (
              <li key={hit.id}>
                <HitView hit={hit} />
              </li>
            ))}
          </ul>
        </section>
      )}
      {found.value.text === text && hits.length === 0 && complete && <p class="hits faint">Nothing in transcripts.</p>}
      {!complete && <p class="hits faint">Older messages are still being read in; search again soon.</p>}
    </>
  );
}

function HitView({ hit }: { hit: Hit }) {
  return (
    <a class="task-link" href={pathOf(hit.task_id, hit.session_id, hit.seq)}>
      <span class="card-title">
        <span class="card-name">{hit.title}</span>
        <span class="faint">
          <Ago stamp={hit.created_at} />
        </span>
      </span>
      <span class="excerpt">{pieces(hit.excerpt, hit.marks).map(marked)}</span>
    </a>
  );
}

function marked({ text, isMarked }: Piece) {
  return isMarked ? <mark>{text}</mark> : text;
}
