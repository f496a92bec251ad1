// The tasks, live: each with its newest session's status. What changed is asked for again, a task at a time.

import { computed, signal } from "@preact/signals";
import type { Answer, Notification } from "../wire/answers";
import type { Connection } from "../wire/connection";
import type { BoardEntry, PermissionRequest } from "../wire/types";
import { type Column, type Place, placeOf } from "../words/place";

export interface Card {
  readonly entry: BoardEntry;
  readonly place: Place;
}

const PAGE = 50;
const PAGES_AT_ONCE = 8;
const SETTLE_MS = 100;

export class BoardStore {
  /** Nothing is known before the first answer. */
  readonly isLoaded = signal(false);
  readonly next = signal<string | null>(null);
  readonly permissions = signal<ReadonlyMap<string, PermissionRequest>>(new Map());
  readonly columns = computed(() => this.arrange());

  private readonly entries = signal<ReadonlyMap<string, BoardEntry>>(new Map());
  private readonly changed = new Set<string>();
  private settling: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly connection: Connection) {
    connection.listen((notification) => this.hear(notification));
    connection.whenOpen(() => void this.load());
  }

  entry(taskId: string): BoardEntry | undefined {
    return this.entries.value.get(taskId);
  }

  /** Load older tasks too. */
  async more(): Promise<void> {
    const cursor = this.next.peek();
    if (cursor === null) return;
    const page = await this.connection.request("task.board", { limit: PAGE, cursor });
    this.put(page.entries);
    this.next.value = page.next_cursor;
  }

  private async load(): Promise<void> {
    const before = [...this.entries.peek().keys()];
    const found = new Set<string>();
    try {
      const { permissions } = await this.connection.request("permission.list", {});
      this.permissions.value = new Map(permissions.map((one) => [one.session_id, one]));
      let cursor: string | null = null;
      for (let page = 0; page < PAGES_AT_ONCE && (page === 0 || cursor !== null); page++) {
        const answer: Answer<"task.board"> = await this.connection.request("task.board", {
          limit: PAGE,
          ...(cursor && { cursor }),
        });
        // At once: what is told from now on is newer than this page (UI-2).
        this.put(answer.entries);
        for (const { task } of answer.entries) found.add(task.id);
        cursor = answer.next_cursor;
      }
      for (const taskId of before) if (!found.has(taskId)) this.forget(taskId);
      this.next.value = cursor;
      this.isLoaded.value = true;
    } catch {
      // The connection is lost; it is loaded again when it stands.
    }
  }

  private hear(notification: Notification): void {
    const { action, payload } = notification;
    if (action === "permission.requested" || action === "permission.resolved") this.takePermission(payload.request);
    if (action === "task.deleted") return this.forget(payload.task_id);
    if (action.startsWith("session.message.")) return;
    this.changed.add(payload.task_id);
    this.settling ??= setTimeout(() => void this.refresh(), SETTLE_MS);
  }

  private takePermission(request: PermissionRequest): void {
    const permissions = new Map(this.permissions.peek());
    if (request.state === "pending") permissions.set(request.session_id, request);
    else if (permissions.get(request.session_id)?.id === request.id) permissions.delete(request.session_id);
    this.permissions.value = permissions;
  }

  private async refresh(): Promise<void> {
    const changed = [...this.changed];
    this.changed.clear();
    this.settling = undefined;
    await Promise.all(changed.map((taskId) => this.refreshOne(taskId)));
  }

  private async refreshOne(taskId: string): Promise<void> {
    try {
      const { entries } = await this.connection.request("task.board", { task_id: taskId });
      const [entry] = entries;
      if (entry === undefined) this.forget(taskId);
      else this.put([entry]);
    } catch {
      // The connection is lost; everything is loaded again when it stands.
    }
  }

  private put(entries: readonly BoardEntry[]): void {
    const news = entries.map((entry): [string, BoardEntry] => [entry.task.id, entry]);
    this.entries.value = new Map([...this.entries.peek(), ...news]);
  }

  private forget(taskId: string): void {
    const entries = new Map(this.entries.peek());
    entries.delete(taskId);
    this.entries.value = entries;
  }

  private arrange(): ReadonlyMap<Column, readonly Card[]> {
    const columns = new Map<Column, Card[]>([
      ["needs", []],
      ["working", []],
      ["review", []],
      ["done", []],
    ]);
    const permissions = this.permissions.value;
    for (const entry of this.entries.value.values()) {
      const asks = permissions.get(entry.session?.id ?? "")?.tool_call["title"];
      const place = placeOf(entry, typeof asks === "string" ? asks : "");
      columns.get(place.column)?.push({ entry, place });
    }
    // By creation, so that nothing jumps while agents work (STATE-6).
    for (const cards of columns.values())
      cards.sort((a, b) => b.entry.task.created_at.localeCompare(a.entry.task.created_at));
    return columns;
  }
}
