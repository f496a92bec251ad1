// The keyboard, for everything. Letters count only while nothing is being typed.

import { go } from "../router";

export const KEYS: readonly (readonly [string, string])[] = [
  ["/", "search"],
  ["n", "new task"],
  ["j k", "next and previous task"],
  ["Enter", "open the task"],
  ["Esc", "close, leave the field, back to the board"],
  ["i", "write a message"],
  ["q", "to the agent's question"],
  ["r", "resume"],
  [".", "stop the turn"],
  ["a d", "allow, reject: while the question has the focus"],
  ["?", "these keys"],
];

export interface KeyActions {
  readonly newTask: () => void;
  readonly help: () => void;
}

export function startKeys(actions: KeyActions): void {
  document.addEventListener("keydown", (event) => {
    if (
      event.defaultPrevented ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      document.querySelector("dialog[open]")
    )
      return;
    if (event.key === "Escape") return leave(event.target as HTMLElement);
    if (isTyping(event.target as Element)) return;
    const act = actionOf(event.key, actions);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** A field of a dialog that has just closed keeps the focus until the next frame, and nobody types there. */
function isTyping(target: Element): boolean {
  const isField = target.closest("input, textarea, select, [role=dialog]") !== null;
  return isField && target.closest("dialog:not([open])") === null;
}

function actionOf(key: string, actions: KeyActions): (() => void) | undefined {
  switch (key) {
    case "/":
      return () => (focus("#search") ? undefined : go("/"));
    case "n":
      return actions.newTask;
    case "?":
      return actions.help;
    case "i":
      return () => void focus("#message");
    case "q":
      return () => void focus(".permission");
    case "r":
      return () => press("Resume", "Try again");
    case ".":
      return () => press("Stop", "Stop the turn");
    case "j":
      return () => step(1);
    case "k":
      return () => step(-1);
    default:
      return undefined;
  }
}

function focus(selector: string): boolean {
  const element = document.querySelector<HTMLElement>(selector);
  element?.focus();
  return element !== null;
}

function press(...labels: readonly string[]): void {
  const buttons = [...document.querySelectorAll<HTMLButtonElement>(".foot button")];
  buttons.find((one) => labels.includes(one.textContent ?? ""))?.click();
}

/** Goes to the next link to a task, or the one before; with 0 stays at one, and goes to the first from elsewhere. */
export function step(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>(".task-link")];
  const focused = links.findIndex((one) => one === document.activeElement);
  const at = focused >= 0 ? focused : links.findIndex((one) => one.getAttribute("aria-current") === "page");
  links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

function leave(target: HTMLElement): void {
  const menu = document.querySelector<HTMLDetailsElement>("details.menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary")?.focus();
    return;
  }
  if (target.matches("input, textarea, select")) target.blur();
  else if (location.pathname !== "/") go("/");
}
