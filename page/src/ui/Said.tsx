import { useEffect } from "preact/hooks";
import { useServices } from "../services";

const SHOWN_MS = 8000;

/** A sentence about what just went wrong; it leaves by itself, or when it is clicked. */
export function Said() {
  const { said } = useServices();
  const words = said.value;
  useEffect(() => {
    if (words === "") return undefined;
    const over = setTimeout(() => (said.value = ""), SHOWN_MS);
    return () => clearTimeout(over);
  }, [words]);
  return (
    <div class="said-place" role="alert">
      {words && (
        <button type="button" class="toast" onClick={() => (said.value = "")}>
          {words}
        </button>
      )}
    </div>
  );
}
