import { useServices } from "../services";
import { now } from "./now";

const SHOWN_AFTER_MS = 3000;

/** Says that the connection is lost, once that has lasted three seconds, and when it is tried next. */
export function ConnectionLine() {
  const { connection } = useServices();
  const phase = connection.phase.value;
  if (phase === "locked") return <Locked />;
  const lostAt = connection.lostAt.value;
  if (lostAt === 0 || now.value - lostAt < SHOWN_AFTER_MS) return null;
  const wait = Math.max(0, Math.ceil((connection.nextTryAt.value - now.value) / 1000));
  return (
    <div class="connection edge-needs" role="status">
      <span class="fact">Connection lost · trying again{wait > 0 ? ` in ${wait} s` : ""}</span>
      <span class="kept">Your draft is kept on this device.</span>
      <button type="button" class="button plain" onClick={() => connection.tryNow()}>
        Now
      </button>
    </div>
  );
}

function Locked() {
  return (
    <div class="connection edge-needs" role="alert">
      <span class="fact">The server asks for its token.</span>
      <span class="kept">
        Run <code>kandev open</code>, or reload the page and enter it.
      </span>
      <button type="button" class="button plain" onClick={() => location.reload()}>
        Reload
      </button>
    </div>
  );
}
