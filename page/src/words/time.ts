// Times as people say them. The exact one goes into a title.

/** "now", "5 m", "3 h", "2 d", else the date. */
export function ago(stamp: string, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(stamp)) / 1000);
  if (Number.isNaN(seconds)) return "";
  if (seconds < 45) return "now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} m`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h`;
  if (seconds < 30 * 86_400) return `${Math.round(seconds / 86_400)} d`;
  return new Date(stamp).toLocaleDateString();
}

/** The time of day, with the date unless it is today. */
export function clock(stamp: string, now: number): string {
  const date = new Date(stamp);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return date.toDateString() === new Date(now).toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

export function exact(stamp: string): string {
  return new Date(stamp).toLocaleString();
}

/** A length: "0.4 s", "12 s", "3 m 5 s". */
export function lasting(milliseconds: number): string {
  if (milliseconds < 9_950) return `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
}

/** A length that grows in view: whole seconds, and nothing before the first. */
export function elapsed(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 1) return "";
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
}
