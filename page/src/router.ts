// Two places: the board, and a session. Links are plain links; a click on one of ours does not load the page again.

import { batch, computed, signal } from "@preact/signals";

export type Route =
  | { readonly at: "board" }
  | { readonly at: "session"; readonly taskId: string; readonly sessionId: string; readonly place: number | undefined };

const path = signal(location.pathname);
const hash = signal(location.hash);
const PLACE = /^#at-(\d{1,15})$/;
const SESSION = /^\/tasks\/([\w-]{1,64})\/sessions\/([\w-]{1,64})\/?$/;

export const route = computed<Route>(() => {
  const match = SESSION.exec(path.value);
  if (!match) return { at: "board" };
  const place = PLACE.exec(hash.value);
  return { at: "session", taskId: match[1]!, sessionId: match[2]!, place: place ? Number(place[1]) : undefined };
});

/** The address of a session, and of a place in its transcript. */
export function pathOf(taskId: string, sessionId: string, place?: number | null): string {
  return `/tasks/${taskId}/sessions/${sessionId}${place ? `#at-${place}` : ""}`;
}

export function go(to: string): void {
  if (to !== location.pathname + location.hash) history.pushState(null, "", to);
  look();
}

function look(): void {
  batch(() => {
    path.value = location.pathname;
    hash.value = location.hash;
  });
}

export function startRouter(): void {
  addEventListener("popstate", look);
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest("a");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (
      !link ||
      !plain ||
      event.defaultPrevented ||
      link.origin !== location.origin ||
      link.target ||
      link.hasAttribute("download")
    )
      return;
    event.preventDefault();
    go(link.pathname + link.hash);
  });
}
