const FIRST_MS = 250;
const MOST_MS = 10_000;

/** How long to wait before try number `attempt` (from 0), in milliseconds. `chance` is 0 to 1: many pages do not come back at once. */
export function waitBefore(attempt: number, chance: number): number {
  const full = Math.min(MOST_MS, FIRST_MS * 2 ** Math.min(attempt, 16));
  return Math.round(full * (0.75 + chance / 4));
}
