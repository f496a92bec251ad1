const STAGES: Readonly<Record<string, string>> = {
  checking: "checking",
  workspace: "checking the folder",
  launching: "starting",
  starting_agent: "starting the agent",
  restoring: "restoring memory",
  ready: "nearly there",
};

/** A stage of a start, in words. */
export function stageWords(stage: string): string {
  return STAGES[stage] ?? "starting";
}
