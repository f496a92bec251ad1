import { expect, test, vi } from "vitest";
import type { Connection } from "../wire/connection";
import { Starts } from "./starts";

function outcome(id: string, after_seq: number, how: string): object {
  return { id, after_seq, how };
}

test("of several starts in one place the last is told; the first launch and failures are not", async () => {
  const resumes = [outcome("d", 7, ""), outcome("c", 4, "native"), outcome("b", 4, "idle"), outcome("a", 0, "fresh")];
  const connection = {
    request: () => Promise.resolve({ resumes }),
    whenOpen: (open: () => void) => (open(), () => undefined),
    listen: () => () => undefined,
  } as unknown as Connection;
  const starts = new Starts(connection, "s");
  starts.open();
  await vi.waitFor(() => expect(starts.byPlace.value.size).toBe(1));
  expect(starts.byPlace.value.get(4)?.id).toBe("c");
});
