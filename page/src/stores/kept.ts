// What this browser keeps: settings and drafts. A browser that refuses to store loses them with the tab.

import { type Signal, signal } from "@preact/signals";

const PREFIX = "kandev.";

/** A signal whose value is kept under a name. */
export function kept<T>(name: string, initial: T, storage: Storage | undefined = browserStorage()): Signal<T> {
  const value = signal<T>(read(storage, PREFIX + name) ?? initial);
  value.subscribe((now) => write(storage, PREFIX + name, now, initial));
  return value;
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
