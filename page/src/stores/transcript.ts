// The messages of one session: in chunks, so that a new one touches one list of at most fifty, and a signal each.

import { type Signal, signal } from "@preact/signals";
import type { Message } from "../wire/types";

export type Placed = Message & { readonly seq: number };
export type Entry = Signal<Placed>;

/** Neighbours in the transcript, ascending. A chunk is drawn as one, and not at all while it is far from the view. */
export interface Chunk {
  readonly key: number;
  /** It came with so many others that it is far from the view, and need not be drawn to be measured. */
  readonly isFar: boolean;
  readonly entries: Signal<readonly Entry[]>;
}

/** `more`: the text does not follow on what is here, so the message has to be fetched whole. */
export type Appended = "done" | "more";

const CHUNK = 50;
const FAR = 10;

export class Transcript {
  readonly chunks = signal<readonly Chunk[]>([]);
  private readonly byId = new Map<string, Entry>();
  /** Length in characters of messages that grow: offsets of the wire count characters, JavaScript counts halves. */
  private readonly lengths = new Map<string, number>();
  private lastKey = 0;

  /** Replace everything by what a snapshot brought. */
  reset(messages: readonly Message[]): void {
    this.byId.clear();
    this.lengths.clear();
    this.chunks.value = [];
    for (const message of messages) this.put(message);
  }

  /** Put an older page, ascending, before everything. */
  prepend(messages: readonly Message[]): void {
    const entries = messages
      .filter(isPlaced)
      .filter((one) => !this.byId.has(one.id))
      .map((one) => this.entry(one));
    const isFar = entries.length > FAR * CHUNK;
    const chunks: Chunk[] = [];
    for (let at = 0; at < entries.length; at += CHUNK) chunks.push(this.chunk(entries.slice(at, at + CHUNK), isFar));
    if (chunks.length > 0) this.chunks.value = [...chunks, ...this.chunks.value];
  }

  /** Add a message, or bring it up to date. One without a place is no part of the transcript (PROMPT-8). */
  put(message: Message): void {
    this.lengths.delete(message.id);
    if (!isPlaced(message)) return this.remove(message.id);
    const known = this.byId.get(message.id);
    if (known?.peek().seq === message.seq) known.value = message;
    else if (known !== undefined) {
      this.remove(message.id);
      this.insert(this.entry(message));
    } else this.insert(this.entry(message));
  }

  /** Append streamed text that begins `offset` characters into its message. */
  append(messageId: string, offset: number, text: string): Appended {
    const entry = this.byId.get(messageId);
    if (entry === undefined) return "more";
    const message = entry.peek();
    const length = this.lengths.get(messageId) ?? characters(message.content);
    if (offset > length) return "more";
    const news = offset === length ? text : [...text].slice(length - offset).join("");
    if (news === "") return "done"; // it is here already
    this.lengths.set(messageId, length + characters(news));
    entry.value = { ...message, content: message.content + news };
    return "done";
  }

  /** The place of the oldest message, or undefined. */
  firstSeq(): number | undefined {
    return this.chunks.peek()[0]?.entries.peek()[0]?.peek().seq;
  }

  /** The messages from the newest back, for as long as the caller takes them. */
  *newestFirst(): Generator<Placed> {
    const chunks = this.chunks.value;
    for (let at = chunks.length - 1; at >= 0; at--) {
      const entries = chunks[at]?.entries.value ?? [];
      for (let index = entries.length - 1; index >= 0; index--) yield entries[index]!.value;
    }
  }

  private entry(message: Placed): Entry {
    const entry = signal(message);
    this.byId.set(message.id, entry);
    return entry;
  }

  private chunk(entries: readonly Entry[], isFar = false): Chunk {
    return { key: ++this.lastKey, isFar, entries: signal(entries) };
  }

  private insert(entry: Entry): void {
    const chunks = this.chunks.peek();
    const seq = entry.peek().seq;
    const at = chunks.findLastIndex((one) => (one.entries.peek()[0]?.peek().seq ?? 0) < seq);
    const chunk = chunks[Math.max(at, 0)];
    const entries = chunk?.entries.peek() ?? [];
    if (chunk === undefined || (at === chunks.length - 1 && entries.length >= CHUNK)) {
      this.chunks.value = [...chunks, this.chunk([entry])];
      return;
    }
    const place = entries.findLastIndex((one) => one.peek().seq < seq) + 1;
    chunk.entries.value = [...entries.slice(0, place), entry, ...entries.slice(place)];
  }

  private remove(messageId: string): void {
    const entry = this.byId.get(messageId);
    if (entry === undefined) return;
    this.byId.delete(messageId);
    for (const chunk of this.chunks.peek()) {
      const entries = chunk.entries.peek();
      if (entries.includes(entry)) chunk.entries.value = entries.filter((one) => one !== entry);
    }
  }
}

function isPlaced(message: Message): message is Placed {
  return message.seq !== null;
}

/** How many characters (code points) a text has: halves of a pair count once. */
function characters(text: string): number {
  let pairs = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code >= 0xd800 && code < 0xdc00 && (text.charCodeAt(at + 1) & 0xfc00) === 0xdc00) (pairs++, at++);
  }
  return text.length - pairs;
}
