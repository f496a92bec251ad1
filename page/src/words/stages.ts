const STAGES: Readonly<Record<string, string>> = {
  checking: "checking",
  workspace: "checking the folder",
  launching: "starting",
  creating_container: "making a container",
  starting_container: "starting the container",
  creating_sandbox: "making a sandbox",
  waking_sandbox: "waking the sandbox up",
  waiting_for_sprites: "waiting: Sprites asks to come later",
  carrying: "carrying the sources",
  starting_agent: "starting the agent",
  next_minute: "waiting for the next minute, so that the agent keeps this conversation",
  restoring: "restoring memory",
  ready: "nearly there",
};

/** A stage of a start, in words. */
export function stageWords(stage: string): string {
  return STAGES[stage] ?? "starting";
}
