// What this browser keeps: settings and drafts. A browser that refuses to store loses them with the tab.

import { type Signal, signal } from "@preact/signals";

const PREFIX = "kandev.";

/** A signal whose value is kept under a name. */
export function kept<T>(name: string, initial: T, storage: Storage | undefined = browserStorage()): Signal<T> {
  const value = signal<T>(read(storage, PREFIX + name) ?? initial);
  value.subscribe((now) => write(storage, PREFIX + name, now, initial));
  return value;
}

/** Values under one name and ids of their own, so that two tabs do not overwrite each other's. */
export class KeptItems<T extends { readonly id: string }> {
  constructor(
    private readonly name: string,
    private readonly storage: Storage | undefined = browserStorage(),
  ) {}

  all(): T[] {
    const names = Object.keys(this.storage ?? {}).filter((name) => name.startsWith(`${PREFIX}${this.name}.`));
    return names.flatMap((name) => read<T>(this.storage, name) ?? []);
  }

  put(item: T): void {
    write<T | undefined>(this.storage, `${PREFIX}${this.name}.${item.id}`, item, undefined);
  }

  remove(id: string): void {
    write(this.storage, `${PREFIX}${this.name}.${id}`, undefined, undefined);
  }
}

function read<T>(storage: Storage | undefined, name: string): T | undefined {
  try {
    const text = storage?.getItem(name);
    return text ? (JSON.parse(text) as T) : undefined;
  } catch {
    return undefined;
  }
}

function write<T>(storage: Storage | undefined, name: string, value: T, initial: T): void {
  try {
    if (JSON.stringify(value) === JSON.stringify(initial)) storage?.removeItem(name);
    else storage?.setItem(name, JSON.stringify(value));
  } catch {
    // No room, or not allowed: it lives as long as the tab.
  }
}

function browserStorage(): Storage | undefined {
  try {
    return localStorage;
  } catch {
    return undefined;
  }
}
