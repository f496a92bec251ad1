import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useServices } from "../services";
import { wordsOf } from "../wire/failures";

interface Properties {
  readonly onAct: () => unknown;
  readonly children: ComponentChildren;
  readonly kind?: "main" | "danger" | "plain";
  readonly disabled?: boolean;
  readonly title?: string;
}

/** A button that answers at once: pressed, at work, done, or why not. */
export function ActionButton({ onAct, children, kind = "plain", disabled = false, title }: Properties) {
  const { said } = useServices();
  const isBusy = useSignal(false);
  const act = async () => {
    if (isBusy.value) return;
    isBusy.value = true;
    try {
      await onAct();
    } catch (error) {
      said.value = wordsOf(error);
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <button
      type="button"
      class={`button ${kind}`}
      disabled={disabled}
      aria-busy={isBusy.value}
      title={title}
      onClick={act}
    >
      {children}
    </button>
  );
}
