// What the page says above the composer, and which buttons go on from there (UI-3, UI-4). One moment at a time: the
// first rule that holds. Pure, so that each moment has a row in a table of tests.

import type { ResumptionFailure, ResumptionState } from "../hooks/domains/session/use-session-resumption";
import type { Return } from "../stores/session";
import type { Status } from "../wire/answers";
import type { Message } from "../wire/types";
import type { Tone } from "./place";
import { stageWords } from "./stages";
import { lasting } from "./time";

export type MomentAction =
  | {
      readonly do:
        "resume" | "cancel" | "start" | "send_again" | "go_on" | "open_queue" | "rebuild" | "log" | "summary";
    }
  | { readonly do: "recover"; readonly how: "resume" | "fresh_start" | "recap" | "retry_token" }
  | { readonly do: "copy"; readonly text: string };

export interface Moment {
  readonly tone: Tone;
  readonly fact: string;
  readonly kept: string;
  readonly actions: readonly (MomentAction & { readonly label: string })[];
  /** Since when something is under way, in milliseconds; the time passed is shown. */
  readonly since?: number;
}

export interface Circumstances {
  readonly agent: string;
  readonly status: Status;
  readonly resumption: ResumptionState;
  readonly stage: string;
  readonly startedAt: number;
  readonly failure: ResumptionFailure | undefined;
  readonly returned: Return | undefined;
  /** The newest message of the server itself, unless the conversation went on after it. */
  readonly notice: Message | undefined;
  readonly silentFor: number;
  /** Steps of the turn that was cut, of which nobody knows whether they ran. */
  readonly unsure: readonly string[];
}

const RECOVER: Readonly<Record<string, string>> = {
  resume: "Try again",
  fresh_start: "Start fresh",
  recap: "Continue with a summary",
  retry_token: "Try the former one again",
};
const LOG = { do: "log", label: "Show log" } as const;
const TRY_AGAIN = { do: "resume", label: "Try again" } as const;
const REBUILD = { do: "rebuild", label: "Rebuild the folder" } as const;
const KEPT_OF_FOLDER = "Commits are kept, uncommitted changes are not.";
const CANCEL = { do: "cancel", label: "Cancel" } as const;
const SILENT_WORDS_S = 60;

type Rule = (now: Circumstances) => Moment | undefined;

/** The moment to show, or undefined while there is nothing to say. */
export function momentOf(now: Circumstances): Moment | undefined {
  for (const rule of RULES) {
    const moment = rule(now);
    if (moment) return moment;
  }
  return undefined;
}

const ended: Rule = ({ status }) => {
  if (status.state !== "COMPLETED") return undefined;
  return { tone: "good", fact: "This task is completed.", kept: "Its transcript stays here.", actions: [] };
};

const comingBack: Rule = ({ resumption, stage, startedAt, status }) => {
  if (resumption !== "resuming" && status.stage === "") return undefined;
  const launch = status.how === "" && status.last_turn === null;
  const verb = launch ? "Starting the session" : "Bringing the session back";
  return {
    tone: "working",
    fact: `${verb}: ${stageWords(stage || status.stage)}`,
    kept: "You can write already; it will be sent when ready.",
    actions: [CANCEL],
    since: startedAt,
  };
};

const notStarted: Rule = ({ status }) => {
  if (status.state !== "CREATED" || status.queue_held !== "not_started") return undefined;
  return { tone: "quiet", fact: "This session was not started.", kept: "", actions: [{ do: "start", label: "Start" }] };
};

const stopped: Rule = ({ status }) => {
  if (status.state !== "CANCELLED") return undefined;
  const actions = recovering(status.recover_actions, { resume: "Start again" });
  return { tone: "quiet", fact: "The session was stopped.", kept: "Nothing is lost.", actions };
};

const failed: Rule = (now) => {
  const { status, agent, failure, notice } = now;
  const ways = status.last_turn === null ? ["resume"] : status.recover_actions; // before the first turn nothing is known
  if (status.state !== "FAILED") return undefined;
  if (failure?.reason === "workspace_missing" || notice?.metadata["reason"] === "workspace_missing") {
    const actions = [REBUILD, ...recovering(status.recover_actions, {}, ["resume"]), details(now, status.error)];
    return { tone: "failed", fact: sentence(status.error), kept: KEPT_OF_FOLDER, actions };
  }
  return {
    tone: "failed",
    fact: `${agent} could not be started: ${sentence(status.error)}`,
    kept: "The conversation is kept.",
    actions: [...recovering(status.recover_actions, {}, ways), LOG, details(now, status.error)],
  };
};

const parked: Rule = (now) => {
  const { status, agent, notice } = now;
  if (status.resume_reason !== "parked" && status.queue_held !== "parked") return undefined;
  const words = notice?.metadata["last_words"];
  const last = typeof words === "string" && words ? `: ${words}` : ".";
  const actions = [...recovering(status.recover_actions, {}, ["resume"]), LOG, details(now, notice?.content ?? "")];
  return { tone: "failed", fact: `${agent} ended 5 times in a minute${last}`, kept: "Nothing was deleted.", actions };
};

const rejected: Rule = ({ status, agent, notice }) => {
  if (status.queue_held !== "token_rejected") return undefined;
  const offered = actionsOf(notice);
  if (offered[0] === "retry_token") {
    const fact = `${agent} could not restore the conversation.`;
    return {
      tone: "needs",
      fact,
      kept: "Nothing was deleted.",
      actions: recovering(offered, { retry_token: "Try again" }),
    };
  }
  return {
    tone: "needs",
    fact: `${agent} no longer has this conversation.`,
    kept: "The transcript and the files are here; the agent's memory of it is not.",
    actions: recovering(offered.length ? offered : status.recover_actions, {}, ["recap", "fresh_start", "retry_token"]),
  };
};

const login: Rule = ({ status, agent, notice, failure }) => {
  if (status.queue_held !== "login_required" && failure?.reason !== "login_required") return undefined;
  const command = notice?.metadata["command"];
  const copy =
    typeof command === "string" && command ? [{ do: "copy", text: command, label: `Copy “${command}”` } as const] : [];
  return {
    tone: "needs",
    fact: `${agent} wants you to log in.`,
    kept: "The conversation is kept.",
    actions: [...copy, TRY_AGAIN],
  };
};

const cutOff: Rule = ({ status, notice, unsure }) => {
  if (!status.interrupted || status.turn !== null) return undefined;
  const why = whoEnded(notice);
  return {
    tone: "needs",
    fact: `The turn was cut off when ${why}.`,
    kept: `Text up to there is kept.${unsure.length ? ` These steps may or may not have run: ${unsure.join(", ")}.` : ""}`,
    actions: [
      { do: "send_again", label: "Send again" },
      { do: "go_on", label: "Go on" },
    ],
  };
};

const mode: Rule = ({ status, agent }) => {
  if (status.queue_held !== "mode_not_restored") return undefined;
  return {
    tone: "needs",
    fact: `${agent} did not take back the mode that was set.`,
    kept: "Nothing is sent until you agree.",
    actions: [{ do: "open_queue", label: "Go on all the same" }],
  };
};

/** The folder was made again, the sandbox is another one, work did not come home: it stands until the next message. */
const workspace: Rule = (now) => {
  const { notice, status } = now;
  if (notice?.metadata["kind"] !== "workspace" || status.turn !== null) return undefined;
  const back = returnedNow(now);
  const [, fact = "", rest = ""] = /^(.*?[.!?](?=\s|$))\s*(.*)$/s.exec(sentence(notice.content)) ?? [];
  const kept = [rest, back?.fact ?? ""].filter((one) => one !== "").join(" ");
  return { tone: "needs", fact, kept, actions: [...(back?.actions ?? []), details(now, notice.content)] };
};

const couldNot: Rule = (now) => {
  const { resumption, failure, agent } = now;
  if (resumption !== "error" || failure === undefined) return undefined;
  if (failure.reason === "workspace_missing") {
    return { tone: "failed", fact: failure.message, kept: KEPT_OF_FOLDER, actions: [REBUILD, TRY_AGAIN] };
  }
  const facts: Readonly<Record<string, string>> = {
    in_use: "This conversation is open in another program.",
    disk_full: "No room is left on the disk.",
    inactive: `${agent} did not answer.`,
    unreachable: `${agent} cannot be reached.`,
    agent_died: `${agent} ended while it was coming back.`,
  };
  const fact = facts[failure.reason];
  const kept = `${fact ? `${sentence(failure.message)} ` : ""}Nothing is lost.`;
  return {
    tone: "failed",
    fact: fact ?? sentence(failure.message),
    kept,
    actions: [TRY_AGAIN, LOG, details(now, `${failure.code} ${failure.reason}: ${failure.message}`)],
  };
};

const silent: Rule = ({ status, silentFor, agent }) => {
  if (status.turn === null || silentFor < SILENT_WORDS_S) return undefined;
  const fact = `${agent} has said nothing for ${lasting(silentFor * 1000)}.`;
  return { tone: "needs", fact, kept: "It may still be working.", actions: [{ ...CANCEL, label: "Stop the turn" }] };
};

const heldQueue: Rule = ({ status }) => {
  if (status.queue_held === "" || status.queued === 0) return undefined;
  const why = status.queue_held === "send_failed" ? "The last prompt could not be sent." : "You stopped the turn.";
  const count = status.queued === 1 ? "1 prompt waits." : `${status.queued} prompts wait.`;
  return { tone: "needs", fact: `${why} ${count}`, kept: "", actions: [{ do: "open_queue", label: "Send now" }] };
};

const returnedNow: Rule = ({ returned, status }) => {
  if (returned === undefined || status.turn !== null) return undefined;
  const took = returned.took_ms >= 1000 ? ` It took ${lasting(returned.took_ms)}.` : "";
  switch (returned.how) {
    case "native":
      return { tone: "good", fact: `The agent remembers this conversation.${took}`, kept: "", actions: [] };
    case "injection":
    case "recap":
      return {
        tone: "good",
        fact: "The agent started new and will get a summary of this conversation with your next message.",
        kept: "",
        actions: [{ do: "summary", label: "See the summary" }],
      };
    case "idle":
      return {
        tone: "needs",
        fact: "The agent started new and does not know this conversation.",
        kept: "The transcript is here.",
        actions: [{ do: "recover", how: "recap", label: "Send a summary with my next message" }],
      };
    default:
      return undefined;
  }
};

const notRunning: Rule = ({ status, resumption }) => {
  const rests = resumption === "idle" && !status.is_agent_running && status.needs_resume;
  if (!rests) return undefined;
  const actions = [{ do: "resume", label: "Resume" } as const];
  return {
    tone: "quiet",
    fact: "The agent is not running.",
    kept: "Nothing is lost; a message wakes it too.",
    actions,
  };
};

const RULES: readonly Rule[] = [
  ended,
  comingBack,
  notStarted,
  stopped,
  failed,
  parked,
  rejected,
  login,
  cutOff,
  mode,
  couldNot,
  silent,
  heldQueue,
  workspace,
  returnedNow,
  notRunning,
];

/** A button that copies what a report of the failure needs. */
function details({ status, agent }: Circumstances, message: string): Moment["actions"][number] {
  const where = `${agent}, ${status.runtime}, session ${status.session_id}, ${status.state} (${status.resume_reason})`;
  return { do: "copy", text: `${message.trim()}\n${where}`, label: "Copy details" };
}

/** Buttons for those of `offered` that `wanted` names, in the order of `wanted`. */
function recovering(
  offered: readonly string[],
  names: Readonly<Record<string, string>> = {},
  wanted: readonly string[] = offered,
): Moment["actions"] {
  return wanted
    .filter((how) => offered.includes(how))
    .filter(isRecovery)
    .map((how) => ({ do: "recover", how, label: names[how] ?? RECOVER[how]! }));
}

function isRecovery(how: string): how is "resume" | "fresh_start" | "recap" | "retry_token" {
  return how in RECOVER;
}

function actionsOf(notice: Message | undefined): readonly string[] {
  const actions = notice?.metadata["actions"];
  return Array.isArray(actions) ? actions.filter((one): one is string => typeof one === "string") : [];
}

function whoEnded(notice: Message | undefined): string {
  switch (notice?.metadata["ended_by"]) {
    case "backend":
      return "the backend stopped";
    case "stopped":
      return "the session was stopped";
    case "not_responding":
      return "the agent did not respond any more";
    default:
      return "the agent ended";
  }
}

function sentence(text: string): string {
  const trimmed = text.trim();
  return trimmed === "" || /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}
