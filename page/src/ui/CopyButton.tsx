import { useSignal } from "@preact/signals";

const SHOWN_MS = 1500;

/** Puts a text on the clipboard and says so. */
export function CopyButton({
  text,
  label,
  children,
}: {
  text: string;
  label: string;
  children?: preact.ComponentChildren;
}) {
  const done = useSignal("");
  const copy = async () => {
    done.value = (await copied(text)) ? "Copied" : "Not possible here";
    setTimeout(() => (done.value = ""), SHOWN_MS);
  };
  return (
    <button type="button" class="copy" aria-label={children ? undefined : label} title={label} onClick={copy}>
      {done.value || children || "Copy"}
    </button>
  );
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text); // is not there beyond loopback without TLS
    return true;
  } catch {
    return false;
  }
}
