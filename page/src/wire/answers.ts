// What each action answers, and what each notification carries (docs/protocol.md); the objects in them are generated.

import type {
  BoardEntry,
  Hit,
  Message,
  PermissionRequest,
  QueuedPrompt,
  Requests,
  ResumeAnswer,
  ResumeOutcome,
  SessionStatus,
  SessionView,
  Task,
  Turn,
} from "./types";

export type Status = SessionStatus;
export type Queued = Pick<QueuedPrompt, "message_id" | "content" | "created_at">;

export interface Agent {
  readonly name: string;
  readonly display_name: string;
  /** Where it runs unless a task says so; "": the default. */
  readonly runtime: string;
  readonly native_session_resume: boolean;
  readonly history_context_injection: boolean;
  readonly found: boolean;
  readonly launchable: boolean;
  readonly problem: string;
  readonly install_hint: string;
  readonly login_hint: string;
}

export interface Runtime {
  readonly name: string;
  readonly default: boolean;
  readonly available: boolean;
  /** Why it is not available, and what to do; "" where it is. */
  readonly problem: string;
  readonly on_backend_restart: string;
}

export interface Mode {
  readonly id: string;
  readonly name: string;
}

export interface Option {
  readonly id: string;
  readonly name: string;
  readonly type?: string;
  readonly currentValue?: unknown;
  readonly options?: readonly { readonly value: string; readonly name: string }[];
}

export interface Snapshot {
  readonly boot_id: string;
  readonly seq: number;
  readonly gap: true;
  readonly session: SessionView;
  readonly status: Status;
  readonly turn: Turn | null;
  readonly messages: readonly Message[];
  readonly messages_left_out?: boolean;
  readonly queue: readonly Queued[];
  readonly permissions: readonly PermissionRequest[];
  readonly mode: string | null;
  readonly modes: readonly Mode[] | null;
  readonly options: readonly Option[] | null;
}

export interface Missed {
  readonly boot_id: string;
  readonly seq: number;
  readonly gap: false;
  readonly events: readonly Notification[];
}

interface Told {
  readonly task_id: string;
  readonly session_id?: string;
  readonly seq?: number;
}

type Of<Fields> = Told & Fields;

/** Payloads by notification. One that did not fit into a frame has `too_large` and the ids only. */
export interface Notifications {
  "task.created": Of<{ task: Task }>;
  "task.updated": Of<{ task?: Task; new_state?: string }>;
  "task.state_changed": Of<{ old_state: string; new_state: string }>;
  "task.deleted": Told;
  "session.state_changed": Of<{ old_state: string; new_state: string; error_message: string }>;
  "session.agent_changed": Of<{ is_agent_running: boolean; exit_code?: number | null; signal?: number | null }>;
  "session.resume.progress": Of<{ stage: string; elapsed_ms: number }>;
  "session.resume.completed": Of<{
    how: string;
    reason: string;
    lost: string;
    stages: Readonly<Record<string, number>>;
  }>;
  "session.resume.failed": Of<{ code: string; reason: string; cause: string; message: string }>;
  "session.turn.started": Of<{ turn: Turn }>;
  "session.turn.stalled": Of<{ turn_id: string; silent_s: number; responding: boolean }>;
  "session.turn.completed": Of<{ turn: Turn; state: string; stop_reason: string }>;
  "session.message.added": Of<{ message: Message; too_large?: boolean; message_id?: string }>;
  "session.message.updated": Of<{ message: Message; too_large?: boolean; message_id?: string }>;
  "session.message.delta": Of<{ message_id: string; offset: number; text: string; too_large?: boolean }>;
  "permission.requested": Of<{ request: PermissionRequest }>;
  "permission.resolved": Of<{ request: PermissionRequest }>;
  "message.queue.changed": Of<{ queue: readonly Queued[]; held: string }>;
  "session.mode_changed": Of<{ mode?: string | null; modes?: readonly Mode[] }>;
  "session.options_changed": Of<{ options?: readonly Option[] }>;
}

export type NotificationAction = keyof Notifications;

/** One notification; `action` tells the type of `payload`. Others than these exist and are ignored. */
export type Notification = {
  [Action in NotificationAction]: { readonly action: Action; readonly payload: Readonly<Notifications[Action]> };
}[NotificationAction];

interface Done {
  readonly success: boolean;
}

interface Known {
  readonly "agent.list": { readonly agents: readonly Agent[] };
  readonly "runtime.list": { readonly runtimes: readonly Runtime[] };
  readonly "task.board": { readonly entries: readonly BoardEntry[]; readonly next_cursor: string | null };
  readonly "task.create": { readonly task: Task; readonly session: SessionView };
  readonly "task.complete": { readonly task: Task };
  readonly "task.delete": Done;
  readonly "task.update": { readonly task: Task };
  readonly "task.subscribe": Done & { readonly boot_id: string };
  readonly "task.session.get": { readonly session: SessionView; readonly resumes: readonly ResumeOutcome[] };
  readonly "task.session.list": { readonly sessions: readonly SessionView[] };
  readonly "task.session.create": { readonly session: SessionView };
  readonly "task.session.status": Status;
  readonly "task.session.resume": ResumeAnswer;
  readonly "task.session.recover": ResumeAnswer;
  readonly "task.session.start": { readonly session: SessionView };
  readonly "session.subscribe": Snapshot | Missed;
  readonly "session.logs": { readonly stderr: string; readonly stages: readonly ResumeOutcome[] };
  readonly "session.recap.preview": {
    readonly text: string;
    readonly messages_used: number;
    readonly messages_total: number;
  };
  readonly "workspace.rebuild": { readonly how: string; readonly path: string; readonly note: string };
  readonly "message.add": { readonly message: Message };
  readonly "message.get": { readonly message: Message };
  readonly "message.list": { readonly messages: readonly Message[]; readonly has_more: boolean };
  readonly "message.search": { readonly hits: readonly Hit[]; readonly complete: boolean };
  readonly "permission.list": { readonly permissions: readonly PermissionRequest[] };
  readonly "permission.respond": { readonly permission: PermissionRequest };
}

export type Action = keyof Requests;
export type Answer<A extends Action> = A extends keyof Known ? Known[A] : unknown;
