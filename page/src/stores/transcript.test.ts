import { expect, test } from "vitest";
import type { Message } from "../wire/types";
import { Transcript } from "./transcript";

function message(seq: number | null, content = "", id = `m${seq}`): Message {
  return {
    id,
    seq,
    content,
    session_id: "s",
    turn_id: null,
    author_type: "agent",
    type: "message",
    metadata: {},
    created_at: "",
    updated_at: "",
    client_message_id: null,
  };
}

function shown(transcript: Transcript): [number, string][] {
  return transcript.chunks.value.flatMap((chunk) =>
    chunk.entries.value.map((one): [number, string] => [one.value.seq, one.value.content]),
  );
}

test("text is appended where it belongs; what is here already is not taken twice", () => {
  const transcript = new Transcript();
  transcript.put(message(1));
  expect(transcript.append("m1", 0, "Hello ")).toBe("done");
  expect(transcript.append("m1", 6, "world")).toBe("done");
  expect(transcript.append("m1", 6, "world")).toBe("done");
  expect(transcript.append("m1", 6, "world!")).toBe("done");
  expect(shown(transcript)).toEqual([[1, "Hello world!"]]);
});

test("offsets count characters, not halves of them", () => {
  const transcript = new Transcript();
  transcript.put(message(1, "🙂"));
  expect(transcript.append("m1", 1, "🙂a")).toBe("done");
  expect(transcript.append("m1", 1, "🙂ab")).toBe("done");
  expect(shown(transcript)).toEqual([[1, "🙂🙂ab"]]);
});

test("text behind a hole, or of an unknown message, is not guessed", () => {
  const transcript = new Transcript();
  transcript.put(message(1, "abc"));
  expect(transcript.append("m1", 5, "f")).toBe("more");
  expect(transcript.append("m9", 0, "f")).toBe("more");
  expect(shown(transcript)).toEqual([[1, "abc"]]);
});

test("messages stand in the order of their places, however they come", () => {
  const transcript = new Transcript();
  for (let seq = 200; seq > 100; seq--) transcript.put(message(seq));
  for (let seq = 201; seq < 300; seq++) transcript.put(message(seq));
  transcript.prepend([message(99), message(100), message(101)]);
  expect(shown(transcript).map(([seq]) => seq)).toEqual(Array.from({ length: 201 }, (_, at) => at + 99));
  expect([...transcript.newestFirst()].slice(0, 2).map((one) => one.seq)).toEqual([299, 298]);
  expect(transcript.firstSeq()).toBe(99);
});

test("PROMPT-8 a prompt that went back to the queue leaves the transcript, and has its new place later", () => {
  const transcript = new Transcript();
  transcript.put(message(1, "one", "p"));
  transcript.put(message(2));
  transcript.put({ ...message(null, "one", "p") });
  expect(shown(transcript).map(([seq]) => seq)).toEqual([2]);
  transcript.put(message(3, "one", "p"));
  expect(shown(transcript).map(([seq]) => seq)).toEqual([2, 3]);
});

test("a new message redraws its own chunk only", () => {
  const transcript = new Transcript();
  for (let seq = 1; seq <= 120; seq++) transcript.put(message(seq));
  const before = transcript.chunks.value.map((chunk) => chunk.entries.value);
  transcript.put(message(121));
  const after = transcript.chunks.value.map((chunk) => chunk.entries.value);
  expect(after.length).toBe(3);
  expect(after.slice(0, 2)).toEqual(before.slice(0, 2));
  expect(after[0]).toBe(before[0]);
});
