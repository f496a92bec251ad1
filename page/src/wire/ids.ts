/** An id of our own, for requests that may be repeated. Not `randomUUID`, which plain HTTP beyond loopback lacks. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
