// @vitest-environment happy-dom
import { beforeEach, expect, test } from "vitest";
import type { Connection } from "../wire/connection";
import { ConnectionLost, Refused } from "../wire/failures";
import { Prompts } from "./prompts";

type Sent = { content: string; client_message_id: string };

/** A server that may be away. `answers` are what becomes of the next messages; good without. */
class FakeConnection {
  readonly sent: Sent[] = [];
  answers: (Error | "good")[] = [];
  private opened: () => void = () => undefined;

  whenOpen(listener: () => void) {
    this.opened = listener;
    return () => undefined;
  }

  async request(_: string, payload: Sent) {
    this.sent.push(payload);
    const answer = this.answers.shift() ?? "good";
    if (answer !== "good") throw answer;
    return {};
  }

  async stand(): Promise<void> {
    this.opened();
    await settled();
  }
}

const settled = () => new Promise((done) => setTimeout(done));
let connection: FakeConnection;

function made(): Prompts {
  const prompts = new Prompts(connection as unknown as Connection, "t", "s");
  prompts.open();
  return prompts;
}

beforeEach(() => {
  localStorage.clear();
  connection = new FakeConnection();
});

test("UI-6 what was typed without a connection goes once it stands, in order, each under one id", async () => {
  const prompts = made();
  connection.answers = [new ConnectionLost(), new ConnectionLost()];
  prompts.add("one");
  prompts.add("two");
  await settled();
  expect(prompts.unsent.value.map((one) => one.content)).toEqual(["one", "two"]);
  connection.answers = [];
  await connection.stand();
  expect(prompts.unsent.value).toEqual([]);
  const ids = new Map(connection.sent.map((one) => [one.client_message_id, one.content]));
  expect([...ids.values()]).toEqual(["one", "two"]);
});

test("UI-6 a page that was closed in between sends it when it is opened again", async () => {
  connection.answers = [new ConnectionLost()];
  made().add("one");
  await settled();
  const [lost] = connection.sent;
  connection = new FakeConnection();
  made();
  await connection.stand();
  expect(connection.sent).toEqual([lost]);
});

test("UI-6 two tabs do not take each other's prompts out of the browser", async () => {
  connection.answers = [new ConnectionLost(), new ConnectionLost()];
  const [first, second] = [made(), made()];
  first.add("one");
  second.add("two");
  await settled();
  connection = new FakeConnection();
  made();
  await connection.stand();
  expect(connection.sent.map((one) => one.content)).toEqual(["one", "two"]);
});

test("a refusal stays in view, does not hold up the next, and can be edited", async () => {
  const prompts = made();
  connection.answers = [new Refused({ code: "CONFLICT", message: "The session ended." })];
  prompts.add("one");
  prompts.add("two");
  await settled();
  expect(prompts.unsent.value).toMatchObject([{ content: "one", refusal: "The session ended." }]);
  prompts.draft.value = "three";
  prompts.takeBack(prompts.unsent.value[0]!.id);
  expect([prompts.draft.value, prompts.unsent.value]).toEqual(["one\n\nthree", []]);
});

test("a draft is kept by the browser for its session", () => {
  made().draft.value = "half a thought";
  expect(made().draft.value).toBe("half a thought");
  expect(new Prompts(connection as unknown as Connection, "t", "other").draft.value).toBe("");
});
