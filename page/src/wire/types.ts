// The types of the wire, written by `make types` from the server's structs. Not edited by hand.

export type SessionState = "CREATED" | "STARTING" | "RUNNING" | "WAITING_FOR_INPUT" | "COMPLETED" | "FAILED" | "CANCELLED";

export type TaskState = "CREATED" | "IN_PROGRESS" | "REVIEW" | "COMPLETED" | "FAILED" | "CANCELLED";

export type TurnState = "open" | "completed" | "cancelled" | "interrupted" | "failed" | "unknown";

export type PermissionState = "pending" | "answered" | "cancelled" | "expired";

export type HoldReason = "" | "not_started" | "cancelled" | "stopped" | "interrupted" | "token_rejected" | "parked" | "login_required" | "send_failed" | "mode_not_restored";

export interface Task {
  readonly id: string;
  readonly title: string;
  readonly description: string;
  readonly state: TaskState;
  readonly created_at: string;
  readonly updated_at: string;
  readonly client_task_id: string | null;
  readonly intent: string;
}

export interface Turn {
  readonly id: string;
  readonly session_id: string;
  readonly agent_execution_id: string;
  readonly message_id: string;
  readonly state: TurnState;
  readonly started_at: string;
  readonly line: number;
  readonly stop_reason: string;
  readonly ended_at: string;
  readonly cancel_requested_at: string;
  readonly usage: Readonly<Record<string, unknown>>;
  readonly error: string;
}

export interface Message {
  readonly id: string;
  readonly session_id: string;
  readonly turn_id: string | null;
  readonly seq: number | null;
  readonly author_type: string;
  readonly type: string;
  readonly content: string;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly created_at: string;
  readonly updated_at: string;
  readonly client_message_id: string | null;
}

export interface QueuedPrompt {
  readonly message_id: string;
  readonly session_id: string;
  readonly position: number;
  readonly content: string;
  readonly created_at: string;
}

export interface PermissionRequest {
  readonly id: string;
  readonly session_id: string;
  readonly turn_id: string | null;
  readonly agent_execution_id: string;
  readonly rpc_id: string;
  readonly tool_call: Readonly<Record<string, unknown>>;
  readonly options: readonly (Readonly<Record<string, unknown>>)[];
  readonly state: PermissionState;
  readonly created_at: string;
  readonly answer: string;
  readonly resolved_at: string;
}

export interface ResumeOutcome {
  readonly id: string;
  readonly session_id: string;
  readonly agent_execution_id: string;
  readonly started_at: string;
  readonly ended_at: string;
  readonly how: string;
  readonly reason: string;
  readonly lost: string;
  readonly error: string;
  readonly stages: Readonly<Record<string, number>>;
  readonly replayed: Readonly<Record<string, number>>;
  readonly after_seq: number;
}

export interface SessionView {
  readonly id: string;
  readonly task_id: string;
  readonly agent: string;
  readonly runtime: string;
  readonly state: string;
  readonly model: string;
  readonly mode: string;
  readonly config_options: Readonly<Record<string, unknown>>;
  readonly repository_path: string;
  readonly worktree_path: string;
  readonly worktree_branch: string;
  readonly error_message: string;
  readonly interrupted: boolean;
  readonly queue_held: string;
  readonly parked_reason: string;
  readonly created_at: string;
  readonly updated_at: string;
}

export interface SessionStatus {
  readonly session_id: string;
  readonly task_id: string;
  readonly state: string;
  readonly is_agent_running: boolean;
  readonly is_resumable: boolean;
  readonly needs_resume: boolean;
  readonly resume_reason: string;
  readonly recover_actions: readonly (string)[];
  readonly acp_session_id: string;
  readonly agent: string;
  readonly runtime: string;
  readonly worktree_path: string;
  readonly worktree_branch: string;
  readonly updated_at: string;
  readonly interrupted: boolean;
  readonly turn: Turn | null;
  readonly last_turn: Turn | null;
  readonly stalled_s: number;
  readonly stage: string;
  readonly queued: number;
  readonly queue_held: string;
  readonly pending_permissions: number;
  readonly needs: string;
  readonly login: LoginView | null;
  readonly how: string;
  readonly error: string;
}

export interface ResumeAnswer {
  readonly success: boolean;
  readonly task_id: string;
  readonly session_id: string;
  readonly agent_execution_id: string;
  readonly state: string;
  readonly worktree_path: string;
  readonly worktree_branch: string;
  readonly already_running: boolean;
}

export interface BoardEntry {
  readonly task: Task;
  readonly session: SessionView | null;
  readonly status: SessionStatus | null;
  readonly sessions: number;
}

export interface Since {
  readonly boot_id: string;
  readonly seq: number;
}

export interface LoginMethod {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly command: string;
}

export interface LoginView {
  readonly state: "needed" | "unknown" | "worked";
  readonly said: string;
  readonly at: string;
  readonly command: string;
  readonly methods: readonly (LoginMethod)[];
}

export interface Hit {
  readonly id: string;
  readonly session_id: string;
  readonly task_id: string;
  readonly title: string;
  readonly seq: number | null;
  readonly author_type: string;
  readonly type: string;
  readonly created_at: string;
  readonly excerpt: string;
  readonly marks: readonly (readonly [number, number])[];
}

export type NothingRequest = object;

export interface AgentListRequest {
  readonly installed_versions?: boolean;
}

export interface AgentCheckRequest {
  readonly name: string;
}

export interface ResolveRequest {
  readonly id: string;
}

export interface TaskCreateRequest {
  readonly description: string;
  readonly agent: string;
  readonly title?: string | null;
  readonly runtime?: string | null;
  readonly repository_path?: string | null;
  readonly base_branch?: string | null;
  readonly model?: string | null;
  readonly mode?: string | null;
  readonly start?: boolean | null;
  readonly client_task_id?: string | null;
  readonly in_place?: boolean | null;
}

export interface TaskListRequest {
  readonly state?: string | null;
  readonly limit?: number | null;
  readonly cursor?: string | null;
}

export interface TaskBoardRequest {
  readonly task_id?: string | null;
  readonly limit?: number | null;
  readonly cursor?: string | null;
}

export interface TaskRefRequest {
  readonly task_id: string;
}

export interface TaskUpdateRequest {
  readonly task_id: string;
  readonly title: string;
}

export interface TaskDeleteRequest {
  readonly task_id: string;
  readonly force?: boolean | null;
  readonly delete_branch?: boolean | null;
}

export interface TaskSubscriptionRequest {
  readonly task_id?: string | null;
}

export interface SessionCreateRequest {
  readonly task_id: string;
  readonly agent?: string | null;
  readonly from_session_id?: string | null;
}

export interface SessionRefRequest {
  readonly session_id: string;
  readonly task_id?: string | null;
}

export interface TaskSessionRefRequest {
  readonly task_id: string;
  readonly session_id: string;
}

export interface ResumeRequest {
  readonly task_id: string;
  readonly session_id: string;
  readonly wait?: boolean | null;
  readonly open_queue?: boolean | null;
}

export interface RecoverRequest {
  readonly task_id: string;
  readonly session_id: string;
  readonly action: "fresh_start" | "recap" | "resume" | "retry_token";
}

export interface SetModeRequest {
  readonly session_id: string;
  readonly mode_id: string;
}

export interface SetConfigOptionRequest {
  readonly session_id: string;
  readonly config_id: string;
  readonly value: string | boolean;
}

export interface LogsRequest {
  readonly session_id: string;
  readonly limit?: number | null;
}

export interface SessionSubscribeRequest {
  readonly session_id: string;
  readonly since?: Since | null;
}

export interface MessageAddRequest {
  readonly task_id: string;
  readonly session_id: string;
  readonly content: string;
  readonly client_message_id?: string | null;
}

export interface MessageListRequest {
  readonly session_id: string;
  readonly before?: number | null;
  readonly after?: number | null;
  readonly limit?: number | null;
}

export interface MessageRefRequest {
  readonly message_id: string;
  readonly session_id?: string | null;
}

export interface MessageSearchRequest {
  readonly text: string;
  readonly task_id?: string | null;
}

export interface QueuedRefRequest {
  readonly session_id: string;
  readonly message_id: string;
}

export interface TurnRefRequest {
  readonly session_id: string;
  readonly turn_id: string;
}

export interface PermissionListRequest {
  readonly session_id?: string | null;
}

export interface PermissionRespondRequest {
  readonly session_id: string;
  readonly request_id: string;
  readonly option_id?: string | null;
  readonly cancelled?: boolean | null;
}

export interface Requests {
  readonly "health.check": NothingRequest;
  readonly "agent.list": AgentListRequest;
  readonly "agent.check": AgentCheckRequest;
  readonly "runtime.list": NothingRequest;
  readonly "id.resolve": ResolveRequest;
  readonly "task.create": TaskCreateRequest;
  readonly "task.list": TaskListRequest;
  readonly "task.board": TaskBoardRequest;
  readonly "task.get": TaskRefRequest;
  readonly "task.update": TaskUpdateRequest;
  readonly "task.complete": TaskRefRequest;
  readonly "task.delete": TaskDeleteRequest;
  readonly "task.subscribe": TaskSubscriptionRequest;
  readonly "task.unsubscribe": TaskSubscriptionRequest;
  readonly "task.session.create": SessionCreateRequest;
  readonly "task.session.list": TaskRefRequest;
  readonly "task.session.get": SessionRefRequest;
  readonly "task.session.start": SessionRefRequest;
  readonly "task.session.status": TaskSessionRefRequest;
  readonly "task.session.resume": ResumeRequest;
  readonly "task.session.recover": RecoverRequest;
  readonly "task.session.cancel": TaskSessionRefRequest;
  readonly "task.session.stop": TaskSessionRefRequest;
  readonly "task.session.delete": TaskSessionRefRequest;
  readonly "session.set_mode": SetModeRequest;
  readonly "session.set_config_option": SetConfigOptionRequest;
  readonly "session.logs": LogsRequest;
  readonly "session.recap.preview": SessionRefRequest;
  readonly "session.subscribe": SessionSubscribeRequest;
  readonly "session.unsubscribe": SessionRefRequest;
  readonly "workspace.rebuild": SessionRefRequest;
  readonly "message.add": MessageAddRequest;
  readonly "message.list": MessageListRequest;
  readonly "message.get": MessageRefRequest;
  readonly "message.search": MessageSearchRequest;
  readonly "message.queue.list": SessionRefRequest;
  readonly "message.queue.cancel": QueuedRefRequest;
  readonly "message.queue.resume": SessionRefRequest;
  readonly "turn.send_again": TurnRefRequest;
  readonly "permission.list": PermissionListRequest;
  readonly "permission.respond": PermissionRespondRequest;
}

export const BOARD_NOTIFICATIONS = [
  "message.queue.changed",
  "permission.requested",
  "permission.resolved",
  "session.agent_changed",
  "session.resume.completed",
  "session.resume.failed",
  "session.resume.progress",
  "session.state_changed",
  "session.turn.completed",
  "session.turn.stalled",
  "session.turn.started",
  "task.created",
  "task.deleted",
  "task.state_changed",
  "task.updated",
] as const;
