import { expect, test, vi } from "vitest";
import { Inbox } from "./inbox";

function numbered(from: number, to: number): string[] {
  return Array.from({ length: to - from }, (_, at) => String(from + at));
}

test("many lines are taken in turns, in order, and those that come meanwhile are last", async () => {
  const turns: string[][] = [];
  const inbox = new Inbox((lines) => turns.push([...lines]));
  inbox.add(numbered(0, 250));
  inbox.add(numbered(250, 260));
  expect(turns.flat()).toEqual(numbered(0, 100));
  await vi.waitFor(() => expect(turns.flat()).toEqual(numbered(0, 260)));
  expect(turns.length).toBe(3);
});

test("what was not taken when the connection was lost is forgotten", async () => {
  const taken: string[] = [];
  const inbox = new Inbox((lines) => taken.push(...lines));
  inbox.add(numbered(0, 150));
  inbox.clear();
  inbox.add(["new"]);
  await vi.waitFor(() => expect(taken).toEqual([...numbered(0, 100), "new"]));
});
