// @vitest-environment happy-dom

import { signal } from "@preact/signals";
import { beforeEach, expect, test } from "vitest";
import type { Services } from "../services";
import { NewTask, placeName } from "./new-task";

const AGENTS = [
  { name: "codex", display_name: "Codex", runtime: "docker", launchable: true, found: true, problem: "" },
  { name: "gemini", display_name: "Gemini", runtime: "", launchable: true, found: true, problem: "" },
];
const HERE = { name: "standalone", default: true, available: true, problem: "", on_backend_restart: "they end" };
const DOCKER = {
  name: "docker",
  default: false,
  available: false,
  problem: "No image.",
  on_backend_restart: "they go on",
};

let runtimes: readonly object[];
let task: NewTask;

beforeEach(async () => {
  runtimes = [HERE, DOCKER];
  const connection = { request: () => Promise.resolve({ runtimes }) };
  task = new NewTask({ agents: signal(AGENTS), connection } as unknown as Services);
  task.description.value = "do it";
  await task.lookAround();
});

test("it runs where the agent's table says, else where the server does, unless a person chooses", () => {
  task.choose("codex");
  expect(task.where.value?.name).toBe("docker");
  task.choose("gemini");
  expect(task.where.value?.name).toBe("standalone");
  task.chooseRuntime("docker");
  expect(task.where.value?.name).toBe("docker");
});

test("nothing is created where nothing can run, until that is mended", async () => {
  task.choose("gemini");
  expect(task.isPossible.value).toBe(true);
  task.chooseRuntime("docker");
  expect(task.isPossible.value).toBe(false);
  expect(task.where.value && placeName(task.where.value)).toBe("docker · not ready");
  runtimes = [HERE, { ...DOCKER, available: true, problem: "" }];
  await task.lookAround();
  expect(task.isPossible.value).toBe(true);
});

test("a server that tells nothing of its runtimes stops nobody", () => {
  task.runtimes.value = [];
  expect(task.where.value).toBeUndefined();
  expect(task.isPossible.value).toBe(true);
});
