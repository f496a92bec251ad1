import { useServices } from "../services";
import { Dialog } from "./Dialog";
import { KEYS } from "./keys";

/** The keys, and the settings of this browser. */
export function HelpDialog({ onClose }: { onClose: () => void }) {
  const { isResumeAutomatic } = useServices();
  return (
    <Dialog title="Keys and settings" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([keys, words]) => <div><dt>{keys.split(" ").map((key) => <kbd>{key}</kbd>)}</dt><dd>{words}</dd></div>)}
      </dl>
      <label class="check">
        <input type="checkbox" checked={isResumeAutomatic.value} onChange={(event) => (isResumeAutomatic.value = event.currentTarget.checked)} />
        Opening a session brings its agent back
      </label>
    </Dialog>
  );
}
