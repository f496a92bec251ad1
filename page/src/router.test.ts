// @vitest-environment happy-dom

import { beforeEach, expect, test } from "vitest";
import { go, pathOf, route } from "./router";

beforeEach(() => go("/"));

test("a session's address may name a place in its transcript", () => {
  go(pathOf("t1", "s1", 42));
  expect(location.hash).toBe("#at-42");
  expect(route.value).toEqual({ at: "session", taskId: "t1", sessionId: "s1", place: 42 });
  go(pathOf("t1", "s1", null));
  expect(route.value).toEqual({ at: "session", taskId: "t1", sessionId: "s1", place: undefined });
});

test("anything else behind the hash is no place, and elsewhere is the board", () => {
  go("/tasks/t1/sessions/s1#at-x");
  expect(route.value).toMatchObject({ place: undefined });
  go("/#at-4");
  expect(route.value).toEqual({ at: "board" });
});
