import { useEffect, useRef } from "preact/hooks";
import { pathOf } from "../router";
import { useServices } from "../services";
import { Shape } from "../ui/Shape";
import { COLUMNS } from "../words/place";

/** The tasks beside a session, in the order of the board. */
export function TaskList({ current }: { current: string }) {
  const { board } = useServices();
  const list = useRef<HTMLElement>(null);
  const columns = board.columns.value;
  useEffect(
    () => list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }),
    [current, board.isLoaded.value],
  );
  return (
    <nav class="task-list" aria-label="Tasks" ref={list}>
      <a class="home" href="/">
        kandev
      </a>
      {COLUMNS.map(({ id, name }) => {
        const cards = columns.get(id) ?? [];
        return (
          cards.length > 0 && (
            <section key={id}>
              <h2>
                {name} <span class="faint">{cards.length}</span>
              </h2>
              <ul>
                {cards.map(({ entry, place }) => (
                  <li key={entry.task.id}>
                    <a
                      class="task-link"
                      href={entry.session ? pathOf(entry.task.id, entry.session.id) : "/"}
                      aria-current={entry.task.id === current ? "page" : undefined}
                      title={`${entry.task.title}: ${place.words}`}
                    >
                      <Shape place={place} /> <span class="task-title">{entry.task.title}</span>
                    </a>
                  </li>
                ))}
              </ul>
            </section>
          )
        );
      })}
    </nav>
  );
}
