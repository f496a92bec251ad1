import { useServices } from "../services";
import type { SessionStore } from "../stores/session";
import type { Option } from "../wire/answers";
import { wordsOf } from "../wire/failures";

/** Mode and options, where the agent offers them. */
export function Settings({ store }: { store: SessionStore }) {
  const { connection } = useServices();
  const session_id = store.sessionId;
  const modes = store.modes.value.map((mode) => ({ value: mode.id, name: mode.name }));
  return (
    <div class="settings">
      <Choice
        name="Mode"
        chosen={store.mode.value ?? ""}
        choices={modes}
        onChoose={(mode_id) => connection.request("session.set_mode", { session_id, mode_id })}
      />
      {store.options.value
        .filter((one) => one.id !== "mode")
        .map((option: Option) => (
          <Choice
            key={option.id}
            name={option.name}
            chosen={String(option.currentValue ?? "")}
            choices={option.options ?? []}
            onChoose={(value) =>
              connection.request("session.set_config_option", { session_id, config_id: option.id, value })
            }
          />
        ))}
    </div>
  );
}

interface ChoiceProperties {
  readonly name: string;
  readonly chosen: string;
  readonly choices: readonly { readonly value: string; readonly name: string }[];
  readonly onChoose: (value: string) => Promise<unknown>;
}

/** A field to choose from; none where there is nothing to choose. */
function Choice({ name, chosen, choices, onChoose }: ChoiceProperties) {
  const { said } = useServices();
  if (choices.length < 2) return null;
  const choose = (value: string) => onChoose(value).catch((error: unknown) => (said.value = wordsOf(error)));
  return (
    <select aria-label={name} value={chosen} onChange={(event) => void choose(event.currentTarget.value)}>
      {choices.map((one) => (
        <option key={one.value} value={one.value}>
          {one.name}
        </option>
      ))}
    </select>
  );
}
