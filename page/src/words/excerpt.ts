// What a search found, in pieces: those that were looked for, and those around them.

export interface Piece {
  readonly text: string;
  readonly isMarked: boolean;
}

/** Cut an excerpt at its marks: [first, length] in characters, ascending. */
export function pieces(excerpt: string, marks: readonly (readonly [number, number])[]): readonly Piece[] {
  const characters = [...excerpt];
  const found: Piece[] = [];
  let at = 0;
  const add = (end: number, isMarked: boolean) => {
    if (end > at) found.push({ text: characters.slice(at, end).join(""), isMarked });
    at = Math.max(at, end);
  };
  for (const [first, length] of marks) {
    add(first, false);
    add(first + length, true);
  }
  add(characters.length, false);
  return found;
}
