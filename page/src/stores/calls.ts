// Calls for a person who is not looking: when a task begins to need him or to wait for him, and only where he has asked
// for it.

import { type Signal, effect } from "@preact/signals";
import type { BoardStore, Card } from "./board";

/** The cards that stand where they did not stand before, by `keyOf`. */
export function newsAmong(before: ReadonlySet<string>, cards: readonly Card[]): readonly Card[] {
  return cards.filter((card) => !before.has(keyOf(card)));
}

export function keyOf({ entry, place }: Card): string {
  return `${entry.task.id} ${place.column}`;
}

/** Watch the board, for as long as the page is open. What stands there at the first look is no news. */
export function callWhenNeeded(board: BoardStore, isWanted: Signal<boolean>): void {
  let known: ReadonlySet<string> | undefined;
  effect(() => {
    if (!board.isLoaded.value) return;
    const columns = board.columns.value;
    const cards = [...(columns.get("needs") ?? []), ...(columns.get("review") ?? [])];
    const news = known === undefined ? [] : newsAmong(known, cards);
    known = new Set(cards.map(keyOf));
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
