// Calls for a person who is not looking: when a task begins to need him, and only where he has asked for it.

import { type Signal, effect } from "@preact/signals";
import type { BoardStore, Card } from "./board";

/** The cards that were not in `before`. */
export function newlyNeeding(before: ReadonlySet<string>, cards: readonly Card[]): readonly Card[] {
  return cards.filter(({ entry }) => !before.has(entry.task.id));
}

/** Watch the board, for as long as the page is open. What needed somebody at the first look is no news. */
export function callWhenNeeded(board: BoardStore, isWanted: Signal<boolean>): void {
  let known: ReadonlySet<string> | undefined;
  effect(() => {
    if (!board.isLoaded.value) return;
    const cards = board.columns.value.get("needs") ?? [];
    const news = known === undefined ? [] : newlyNeeding(known, cards);
    known = new Set(cards.map(({ entry }) => entry.task.id));
    if (document.hidden && isWanted.peek()) news.forEach(call);
  });
}

/** Ask the browser for the right to call; whether it was given. */
export async function mayCall(): Promise<boolean> {
  if (typeof Notification === "undefined") return false;
  return (await Notification.requestPermission()) === "granted";
}

function call({ entry, place }: Card): void {
  if (typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const note = new Notification(entry.task.title, { body: place.words, tag: entry.task.id });
  note.onclick = () => window.focus();
}
