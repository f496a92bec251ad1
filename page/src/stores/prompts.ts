// What a person typed: the draft, and the prompts that the server has not acknowledged yet. Nothing is lost when the
// connection is (UI-6), and nothing is sent twice: a repeated `client_message_id` gives the stored message (PROMPT-2).

import { type Signal, signal } from "@preact/signals";
import type { Connection } from "../wire/connection";
import { ConnectionLost, wordsOf } from "../wire/failures";
import { newId } from "../wire/ids";
import { KeptItems, kept } from "./kept";

export interface Unsent {
  readonly id: string;
  readonly at: number;
  readonly content: string;
  /** Why the server refused it; "" while it is on its way. */
  readonly refusal: string;
}

export class Prompts {
  readonly draft: Signal<string>;
  readonly unsent: Signal<readonly Unsent[]>;
  private readonly items: KeptItems<Unsent>;
  private isSending = false;

  constructor(
    private readonly connection: Connection,
    private readonly taskId: string,
    private readonly sessionId: string,
  ) {
    this.draft = kept(`draft.${sessionId}`, "");
    this.items = new KeptItems(`unsent.${sessionId}`);
    this.unsent = signal(this.items.all().sort((a, b) => a.at - b.at));
  }

  /** Send what waits whenever the connection stands, until the returned function is called. */
  open(): () => void {
    return this.connection.whenOpen(() => void this.send());
  }

  /** Send a text, as soon as that is possible. */
  add(content: string): void {
    this.put({ id: newId(), at: Date.now(), content, refusal: "" });
    void this.send();
  }

  /** Send a prompt that was refused once more, under its own id. */
  sendAgain(id: string): void {
    const refused = this.unsent.value.find((one) => one.id === id);
    if (refused) this.put({ ...refused, refusal: "" });
    void this.send();
  }

  /** Take a prompt that was refused out of the way; its text goes back to the draft. */
  takeBack(id: string): void {
    const content = this.unsent.value.find((one) => one.id === id)?.content ?? "";
    this.drop(id);
    this.putBack(content);
  }

  /** Put a text before what is being typed. */
  putBack(content: string): void {
    this.draft.value = [content, this.draft.value].filter((one) => one.trim() !== "").join("\n\n");
  }

  private async send(): Promise<void> {
    if (this.isSending) return;
    this.isSending = true;
    try {
      for (let next = this.next(); next !== undefined; next = this.next()) await this.sendOne(next);
    } catch {
      // The connection is lost; the rest goes when it stands.
    } finally {
      this.isSending = false;
    }
  }

  private next(): Unsent | undefined {
    return this.unsent.value.find((one) => one.refusal === "");
  }

  private async sendOne(one: Unsent): Promise<void> {
    const { id, content } = one;
    const ids = { task_id: this.taskId, session_id: this.sessionId, client_message_id: id };
    try {
      await this.connection.request("message.add", { ...ids, content });
      this.drop(id);
    } catch (error) {
      if (error instanceof ConnectionLost) throw error;
      this.put({ ...one, refusal: wordsOf(error) });
    }
  }

  private put(item: Unsent): void {
    this.items.put(item);
    const isKnown = this.unsent.value.some((one) => one.id === item.id);
    this.unsent.value = isKnown
      ? this.unsent.value.map((one) => (one.id === item.id ? item : one))
      : [...this.unsent.value, item];
  }

  private drop(id: string): void {
    this.items.remove(id);
    this.unsent.value = this.unsent.value.filter((one) => one.id !== id);
  }
}
