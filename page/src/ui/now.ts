// The time, as a signal that moves once a second while somebody looks.

import { signal } from "@preact/signals";

export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);
