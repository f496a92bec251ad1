import { describe, expect, test } from "vitest";
import type { Status } from "../wire/answers";
import type { Message } from "../wire/types";
import { type Circumstances, momentOf } from "./moment";

const STATUS = {
  state: "WAITING_FOR_INPUT",
  is_agent_running: true,
  needs_resume: false,
  is_resumable: true,
  resume_reason: "already_running",
  recover_actions: [],
  queue_held: "",
  queued: 0,
  stage: "",
  turn: null,
  last_turn: { id: "turn1" },
  interrupted: false,
  how: "",
  error: "",
} as unknown as Status;

function at(status: Partial<Status>, other: Partial<Circumstances> = {}): Circumstances {
  return {
    agent: "Codex",
    status: { ...STATUS, ...status },
    resumption: "running",
    stage: "",
    startedAt: 0,
    failure: undefined,
    returned: undefined,
    notice: undefined,
    silentFor: 0,
    unsure: [],
    ...other,
  };
}

function notice(metadata: Message["metadata"]): Message {
  return { metadata, content: "" } as unknown as Message;
}

const RECOVER = ["resume", "fresh_start", "recap", "retry_token"];
const RETURNED = { how: "native", lost: "", took_ms: 200, at: 0 };

describe("each moment has its fact, what was kept, and buttons", () => {
  test.each<[string, Circumstances, RegExp | undefined, string[]]>([
    ["nothing to say", at({}), undefined, []],
    ["a turn runs", at({ turn: { id: "x" } as never }, { returned: RETURNED }), undefined, []],
    [
      "coming back",
      at({}, { resumption: "resuming", stage: "restoring" }),
      /^Bringing the session back: restoring memory$/,
      ["Cancel"],
    ],
    ["somebody else's start", at({ stage: "workspace" }), /checking the folder/, ["Cancel"]],
    ["the first start", at({ last_turn: null }, { resumption: "resuming" }), /^Starting the session/, ["Cancel"]],
    ["remembers", at({}, { returned: RETURNED }), /^The agent remembers this conversation\.$/, []],
    ["remembers, slowly", at({}, { returned: { ...RETURNED, took_ms: 2300 } }), /It took 2\.3 s\.$/, []],
    [
      "will be told",
      at({}, { returned: { ...RETURNED, how: "injection" } }),
      /will get a summary/,
      ["See the summary"],
    ],
    [
      "knows nothing",
      at({}, { returned: { ...RETURNED, how: "idle" } }),
      /does not know this conversation/,
      ["Send a summary with my next message"],
    ],
    ["a first launch needs no words", at({}, { returned: { ...RETURNED, how: "fresh" } }), undefined, []],
    [
      "rejected",
      at(
        { queue_held: "token_rejected", recover_actions: RECOVER },
        { notice: notice({ actions: ["recap", "fresh_start", "retry_token"] }) },
      ),
      /^Codex no longer has this conversation\.$/,
      ["Continue with a summary", "Start fresh", "Try the former one again"],
    ],
    [
      "cannot restore",
      at(
        { queue_held: "token_rejected", recover_actions: RECOVER },
        { notice: notice({ actions: ["retry_token", "recap", "fresh_start"] }) },
      ),
      /^Codex could not restore/,
      ["Try again", "Continue with a summary", "Start fresh"],
    ],
    [
      "cut by the backend",
      at({ interrupted: true }, { notice: notice({ ended_by: "backend" }) }),
      /when the backend stopped\.$/,
      ["Send again", "Go on"],
    ],
    [
      "cut by the agent",
      at({ interrupted: true }, { notice: notice({ ended_by: "agent" }) }),
      /when the agent ended\.$/,
      ["Send again", "Go on"],
    ],
    [
      "login",
      at({ queue_held: "login_required" }, { notice: notice({ command: "codex login" }) }),
      /wants you to log in/,
      ["Copy “codex login”", "Try again"],
    ],
    ["login without a command", at({ queue_held: "login_required" }), /wants you to log in/, ["Try again"]],
    [
      "the folder is gone",
      at(
        {},
        {
          resumption: "error",
          failure: { code: "CONFLICT", reason: "workspace_missing", message: "The folder /x is gone." },
        },
      ),
      /folder \/x is gone/,
      ["Rebuild the folder", "Try again"],
    ],
    [
      "open elsewhere",
      at({}, { resumption: "error", failure: { code: "CONFLICT", reason: "in_use", message: "pid 7" } }),
      /open in another program/,
      ["Try again", "Show log", "Copy details"],
    ],
    [
      "disk full",
      at({}, { resumption: "error", failure: { code: "CONFLICT", reason: "disk_full", message: "" } }),
      /No room is left/,
      ["Try again", "Show log", "Copy details"],
    ],
    [
      "anything else",
      at({}, { resumption: "error", failure: { code: "X", reason: "new", message: "Odd" } }),
      /^Odd\.$/,
      ["Try again", "Show log", "Copy details"],
    ],
    [
      "parked",
      at({ resume_reason: "parked", queue_held: "parked", recover_actions: RECOVER }),
      /ended 5 times in a minute/,
      ["Try again", "Show log", "Copy details"],
    ],
    [
      "parked, with the agent's last words",
      at(
        { resume_reason: "parked", queue_held: "parked", recover_actions: RECOVER },
        { notice: notice({ kind: "parked", last_words: "no room left." }) },
      ),
      /^Codex ended 5 times in a minute: no room left\.$/,
      ["Try again", "Show log", "Copy details"],
    ],
    [
      "failed",
      at({ state: "FAILED", error: "no such command", recover_actions: ["resume", "fresh_start"] }),
      /could not be started: no such command\./,
      ["Try again", "Start fresh", "Show log", "Copy details"],
    ],
    [
      "failed before its first turn: there is nothing to tell a new one, and nothing to forget",
      at({ state: "FAILED", last_turn: null, error: "no such command", recover_actions: RECOVER }),
      /could not be started/,
      ["Try again", "Show log", "Copy details"],
    ],
    ["stopped", at({ state: "CANCELLED", recover_actions: ["resume"] }), /was stopped/, ["Start again"]],
    ["completed", at({ state: "COMPLETED" }, { resumption: "error" }), /completed/, []],
    ["not started", at({ state: "CREATED", queue_held: "not_started" }), /not started/, ["Start"]],
    [
      "the mode did not come back",
      at({ queue_held: "mode_not_restored" }),
      /did not take back the mode/,
      ["Go on all the same"],
    ],
    [
      "failed, because the folder is gone; known from the transcript after a reload",
      at(
        { state: "FAILED", error: "/x is gone.", recover_actions: ["resume", "fresh_start"] },
        { notice: notice({ reason: "workspace_missing" }) },
      ),
      /^\/x is gone\.$/,
      ["Rebuild the folder", "Try again", "Copy details"],
    ],
    [
      "held by a stop, prompts wait",
      at({ queue_held: "cancelled", queued: 2 }),
      /You stopped the turn\. 2 prompts wait\./,
      ["Send now"],
    ],
    ["held by a stop, nothing waits", at({ queue_held: "cancelled" }), undefined, []],
    ["silent", at({ turn: { id: "x" } as never }, { silentFor: 75 }), /said nothing for 1 m 15 s/, ["Stop the turn"]],
    [
      "dormant, resumed by hand",
      at({ is_agent_running: false, needs_resume: true }, { resumption: "idle" }),
      /^The agent is not running\.$/,
      ["Resume"],
    ],
    [
      "dormant, being checked",
      at({ is_agent_running: false, needs_resume: true }, { resumption: "checking" }),
      undefined,
      [],
    ],
  ])("%s", (_, circumstances, fact, labels) => {
    const moment = momentOf(circumstances);
    if (fact === undefined) expect(moment).toBeUndefined();
    else expect(moment?.fact).toMatch(fact);
    expect(moment?.actions.map((one) => one.label) ?? []).toEqual(labels);
  });
});

test("steps of which nobody knows whether they ran are named", () => {
  expect(momentOf(at({ interrupted: true }))?.kept).toBe("Text up to there is kept.");
  const kept = momentOf(at({ interrupted: true }, { unsure: ["make", "rm -r build"] }))?.kept;
  expect(kept).toBe("Text up to there is kept. These steps may or may not have run: make, rm -r build.");
});

test("a button that recovers is there only where the server offers it", () => {
  const moment = momentOf(at({ state: "FAILED", recover_actions: [] }));
  expect(moment?.actions.map((one) => one.do)).toEqual(["log", "copy"]);
});

test("a warning of the workspace says what happened, what to do, and how the agent came back", () => {
  const warning = { ...notice({ kind: "workspace" }), content: "The sandbox is gone (v1.2). Tell it again" };
  const moment = momentOf(at({}, { returned: { ...RETURNED, how: "idle" }, notice: warning }));
  expect(moment?.fact).toBe("The sandbox is gone (v1.2).");
  expect(moment?.kept).toBe("Tell it again. The agent started new and does not know this conversation.");
  expect(moment?.actions.map((one) => one.label)).toEqual(["Send a summary with my next message", "Copy details"]);
  expect(momentOf(at({ turn: { id: "x" } as never }, { notice: warning }))).toBeUndefined();
});

test("no word of the inside is told", () => {
  for (const held of ["token_rejected", "login_required", "parked", "mode_not_restored"]) {
    const moment = momentOf(at({ queue_held: held, recover_actions: RECOVER }));
    expect(`${moment?.fact} ${moment?.kept}`).not.toMatch(/token|ACP|execution|!/i);
  }
});
