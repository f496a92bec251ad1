// Two places: the board, and a session. Links are plain links; a click on one of ours does not load the page again.

import { computed, signal } from "@preact/signals";

export type Route =
  { readonly at: "board" } | { readonly at: "session"; readonly taskId: string; readonly sessionId: string };

const path = signal(location.pathname);
const SESSION = /^\/tasks\/([\w-]{1,64})\/sessions\/([\w-]{1,64})\/?$/;

export const route = computed<Route>(() => {
  const match = SESSION.exec(path.value);
  return match ? { at: "session", taskId: match[1]!, sessionId: match[2]! } : { at: "board" };
});

export function pathOf(taskId: string, sessionId: string): string {
  return `/tasks/${taskId}/sessions/${sessionId}`;
}

export function go(to: string): void {
  if (to !== location.pathname) history.pushState(null, "", to);
  path.value = to;
}

export function startRouter(): void {
  addEventListener("popstate", () => (path.value = location.pathname));
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
    go(link.pathname);
  });
}
