import { ago, clock, exact } from "../words/time";
import { now } from "./now";

/** How long ago; the exact time on hover. */
export function Ago({ stamp }: { stamp: string }) {
  return (
    <time dateTime={stamp} title={exact(stamp)}>
      {ago(stamp, now.value)}
    </time>
  );
}

/** The time of day; the exact one on hover. */
export function Clock({ stamp }: { stamp: string }) {
  return (
    <time dateTime={stamp} title={exact(stamp)}>
      {clock(stamp, Date.now())}
    </time>
  );
}
