import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";

interface Properties {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly isWide?: boolean;
}

/** A modal dialog: Escape, the cross and a click beside it close it; the focus goes back to where it was. */
export function Dialog({ title, onClose, children, isWide = false }: Properties) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  // Before the next key: what is typed at once belongs into the dialog.
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  const beside = (event: MouseEvent) => event.target === element.current && onClose();
  return (
    <dialog
      ref={element}
      class={isWide ? "wide-dialog" : ""}
      aria-labelledby={heading}
      onClose={onClose}
      onMouseDown={beside}
    >
      <div class="dialog">
        <header>
          <h2 id={heading}>{title}</h2>
          <button type="button" class="button plain" aria-label="Close" onClick={onClose}>
            ✕
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
