import { useServices } from "../services";
import { mayCall } from "../stores/calls";
import { Dialog } from "./Dialog";
import { KEYS } from "./keys";

/** The keys, and the settings of this browser. */
export function HelpDialog({ onClose }: { onClose: () => void }) {
  const { isResumeAutomatic, isCalling, said } = useServices();
  const setCalling = async (box: HTMLInputElement) => {
    const isWanted = box.checked;
    isCalling.value = isWanted && (await mayCall());
    box.checked = isCalling.value; // what did not change is not drawn again
    if (isWanted && !isCalling.value) said.value = "The browser does not allow it for this page.";
  };
  return (
    <Dialog title="Keys and settings" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([keys, words]) => (
          <div>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd>{key}</kbd>
              ))}
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input
          type="checkbox"
          checked={isResumeAutomatic.value}
          onChange={(event) => (isResumeAutomatic.value = event.currentTarget.checked)}
        />
        Opening a session brings its agent back
      </label>
      <label class="check">
        <input type="checkbox" checked={isCalling.value} onChange={(event) => void setCalling(event.currentTarget)} />
        Call me when a task needs me and I am not looking
      </label>
    </Dialog>
  );
}
