import { type Signal, signal } from "@preact/signals";
import { useServices } from "../services";
import type { Card } from "../stores/board";
import { ActionButton } from "../ui/ActionButton";
import { step } from "../ui/keys";
import { COLUMNS } from "../words/place";
import { CardView } from "./CardView";
import { NewTaskDialog } from "./NewTaskDialog";
import { Hits } from "./Hits";

/** What is looked for; who opens a hit and comes back finds the others still there. */
const text = signal("");

/** All tasks by what they need: the first thing to see is what needs a person. */
export function BoardPage({ isNewOpen }: { isNewOpen: Signal<boolean> }) {
  const { board } = useServices();
  const columns = board.columns.value;
  const need = columns.get("needs")?.length ?? 0;
  const isEmpty = board.isLoaded.value && COLUMNS.every(({ id }) => columns.get(id)?.length === 0);
  const isSearched = text.value.trim().length > 1;
  return (
    <main class="board-page">
      <header class="board-head">
        <h1>kandev</h1>
        <input
          id="search"
          type="search"
          placeholder="Search titles and transcripts ( / )"
          aria-label="Search titles and transcripts"
          value={text.value}
          onInput={(event) => (text.value = event.currentTarget.value)}
          onKeyDown={keyed}
        />
        <p class="need" role="status">
          {need > 0 && (
            <>
              <span class="shape tone-needs" aria-hidden="true">
                ●
              </span>{" "}
              {need} {need === 1 ? "needs" : "need"} you
            </>
          )}
        </p>
        <button type="button" class="button main" onClick={() => (isNewOpen.value = true)}>
          + New task
        </button>
      </header>
      {isEmpty ? (
        <Empty />
      ) : (
        <div class={`board ${isSearched ? "is-searched" : ""}`}>
          {COLUMNS.map(({ id, name }) => (
            <Column key={id} name={name} cards={filtered(columns.get(id) ?? [], text.value)} />
          ))}
        </div>
      )}
      {isSearched && <Hits text={text.value.trim()} />}
      {board.next.value !== null && <ActionButton onAct={() => board.more()}>Older tasks</ActionButton>}
      {isNewOpen.value && <NewTaskDialog onClose={() => (isNewOpen.value = false)} />}
    </main>
  );
}

/** Escape forgets the text, Enter and the arrow down go to what was found. */
function keyed(event: KeyboardEvent): void {
  if (event.key === "Escape") text.value = "";
  if (event.key !== "Enter" && event.key !== "ArrowDown") return;
  event.preventDefault();
  step(0);
}

function filtered(cards: readonly Card[], text: string): readonly Card[] {
  const wanted = text.trim().toLowerCase();
  return wanted === "" ? cards : cards.filter(({ entry }) => entry.task.title.toLowerCase().includes(wanted));
}

function Column({ name, cards }: { name: string; cards: readonly Card[] }) {
  return (
    <section class={`column ${cards.length === 0 ? "is-empty" : ""}`}>
      <h2>
        {name} <span class="faint">{cards.length}</span>
      </h2>
      <ul>
        {cards.map((card) => (
          <li key={card.entry.task.id}>
            <CardView card={card} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Empty() {
  return (
    <div class="empty">
      <p>No tasks yet.</p>
      <p class="faint">
        Press <kbd>n</kbd>, say what is to be done, and choose an agent. “Demo” needs no login and no network.
      </p>
    </div>
  );
}
