// A place in the transcript that somebody wants to read: loaded, brought into view, and shown as such.

import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";
import type { SessionStore } from "../stores/session";

/** Frames. What lies far away is drawn only once the view is near, so it is looked for again while that settles. */
const PATIENCE = 60;
const STEADY = 4;

/** Bring the message with this place into view, once, when the transcript is there. */
export function usePlace(
  store: SessionStore,
  scroller: RefObject<HTMLDivElement | null>,
  place: number | undefined,
  leaveEnd: () => void,
): void {
  const isThere = store.session.value !== undefined;
  useEffect(() => {
    if (place === undefined || !isThere) return;
    let isWanted = true;
    leaveEnd();
    void store.reach(place).then(() => isWanted && scroller.current && show(scroller.current, place, () => isWanted));
    return () => (isWanted = false);
  }, [place, isThere]);
}

function show(view: HTMLElement, place: number, isWanted: () => boolean): void {
  let left = PATIENCE;
  let steady = 0;
  const step = () => {
    const found = view.querySelector<HTMLElement>(`[data-seq="${place}"]`);
    const top = view.scrollTop;
    (found ?? chunkOf(view, place))?.scrollIntoView({ block: found ? "center" : "start" });
    if (found) mark(view, found);
    steady = found && view.scrollTop === top ? steady + 1 : 0;
    if (isWanted() && steady < STEADY && left-- > 0) requestAnimationFrame(step);
  };
  step();
}

function mark(view: HTMLElement, found: HTMLElement): void {
  for (const other of view.querySelectorAll(".is-found")) if (other !== found) other.classList.remove("is-found");
  found.classList.add("is-found");
  const folded = found.querySelector<HTMLDetailsElement>("details.thinking");
  if (folded) folded.open = true;
}

/** The part of the transcript that the place is in, drawn or not. */
function chunkOf(view: HTMLElement, place: number): HTMLElement | undefined {
  const chunks = [...view.querySelectorAll<HTMLElement>("[data-first]")];
  return chunks.findLast((chunk) => Number(chunk.dataset["first"]) <= place);
}
