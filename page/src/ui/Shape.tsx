import type { Place } from "../words/place";

/** The shape of a state, in its colour. The words stand beside it, so it is hidden from screen readers. */
export function Shape({ place }: { place: Pick<Place, "tone" | "shape"> }) {
  return (
    <span class={`shape tone-${place.tone}`} aria-hidden="true">
      {place.shape}
    </span>
  );
}
