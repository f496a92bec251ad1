import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** The focus stays on a task that moves to another column, where its link is another element. */
export function useKeptFocus(place: RefObject<HTMLElement | null>): void {
  const task = useRef<string | undefined>(undefined);
  useEffect(() => {
    const came = ({ target }: FocusEvent) => (task.current = (target as HTMLElement).dataset["task"]);
    const left = ({ target }: FocusEvent) =>
      queueMicrotask(() => {
        if ((target as HTMLElement).isConnected) task.current = undefined; // somebody went elsewhere
      });
    place.current?.addEventListener("focusin", came);
    place.current?.addEventListener("focusout", left);
  }, []);
  useLayoutEffect(() => {
    if (task.current === undefined || document.activeElement !== document.body) return;
    place.current?.querySelector<HTMLElement>(`[data-task="${task.current}"]`)?.focus();
  });
}
