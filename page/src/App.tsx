import { type Signal, useSignalEffect } from "@preact/signals";
import { BoardPage } from "./board/BoardPage";
import { route } from "./router";
import { type Services, ServicesProvider } from "./services";
import { SessionPage } from "./session/SessionPage";
import { ConnectionLine } from "./ui/ConnectionLine";
import { HelpDialog } from "./ui/HelpDialog";
import { Said } from "./ui/Said";

interface Properties {
  readonly services: Services;
  readonly isNewOpen: Signal<boolean>;
  readonly isHelpOpen: Signal<boolean>;
}

/** The page: what the address names, and above it whether the server can be heard. */
export function App({ services, isNewOpen, isHelpOpen }: Properties) {
  const at = route.value;
  useSignalEffect(() => {
    const need = services.board.columns.value.get("needs")?.length ?? 0;
    const shown = route.value;
    const title = shown.at === "session" ? services.board.entry(shown.taskId)?.task.title : undefined;
    document.title = `${need > 0 ? `(${need}) ` : ""}${title ? `${title} · ` : ""}kandev`;
  });
  return (
    <ServicesProvider value={services}>
      <ConnectionLine />
      {at.at === "session" ? (
        <SessionPage key={at.sessionId} taskId={at.taskId} sessionId={at.sessionId} place={at.place} />
      ) : (
        <BoardPage isNewOpen={isNewOpen} />
      )}
      {isHelpOpen.value && <HelpDialog onClose={() => (isHelpOpen.value = false)} />}
      <Said />
    </ServicesProvider>
  );
}
