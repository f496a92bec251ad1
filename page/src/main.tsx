import "./style/base.css";
import "./style/board.css";
import "./style/session.css";
import "./style/text.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { App } from "./App";
import { go, startRouter } from "./router";
import { makeServices } from "./services";
import { startKeys } from "./ui/keys";

const services = makeServices();
const isNewOpen = signal(false);
const isHelpOpen = signal(false);

startRouter();
startKeys({
  newTask: () => {
    go("/");
    isNewOpen.value = true;
  },
  help: () => (isHelpOpen.value = true),
});
services.connection.start();
render(<App services={services} isNewOpen={isNewOpen} isHelpOpen={isHelpOpen} />, document.getElementById("page")!);
