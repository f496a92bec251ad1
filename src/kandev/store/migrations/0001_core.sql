-- Tasks, sessions, the executor row, turns, messages, queue, permissions, outcomes of resumes, lines on their way.
-- Times are ISO 8601 text in UTC. Columns named in the specification keep its names.

CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    state TEXT NOT NULL,
    client_task_id TEXT UNIQUE,
    intent TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE INDEX tasks_by_time ON tasks (created_at, id);

CREATE TABLE task_sessions (
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    agent TEXT NOT NULL,
    agent_config TEXT NOT NULL,           -- what the session was created with; a later edit reaches new sessions only
    runtime TEXT NOT NULL,
    state TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT '',
    mode TEXT NOT NULL DEFAULT '',
    config_options TEXT NOT NULL DEFAULT '{}',
    repository_path TEXT NOT NULL DEFAULT '',
    workspace TEXT NOT NULL DEFAULT '',   -- stored before git runs (WORK-6)
    agent_state TEXT NOT NULL DEFAULT '{}', -- what the agent last said of modes, options, commands and plan
    error_message TEXT NOT NULL DEFAULT '',
    interrupted INTEGER NOT NULL DEFAULT 0,
    queue_held TEXT NOT NULL DEFAULT '',
    parked_reason TEXT NOT NULL DEFAULT '',
    failures TEXT NOT NULL DEFAULT '[]',  -- times of starts that failed; five in a minute park the session
    intent TEXT NOT NULL DEFAULT '',
    recap_pending INTEGER NOT NULL DEFAULT 0,
    recap_of TEXT NOT NULL DEFAULT '',    -- the session whose messages the recap tells; '' is this one
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE INDEX task_sessions_by_task ON task_sessions (task_id, created_at);
CREATE INDEX task_sessions_by_state ON task_sessions (state);
CREATE INDEX task_sessions_by_intent ON task_sessions (intent) WHERE intent <> '';

CREATE TABLE executors_running (
    session_id TEXT PRIMARY KEY REFERENCES task_sessions (id) ON DELETE CASCADE,
    task_id TEXT NOT NULL,
    runtime TEXT NOT NULL,
    status TEXT NOT NULL,
    resume_token TEXT NOT NULL DEFAULT '',
    last_message_uuid TEXT NOT NULL DEFAULT '',
    container_id TEXT NOT NULL DEFAULT '',
    agentctl_url TEXT NOT NULL DEFAULT '',
    agentctl_port INTEGER NOT NULL DEFAULT 0,
    worktree_id TEXT NOT NULL DEFAULT '',
    worktree_path TEXT NOT NULL DEFAULT '',
    worktree_branch TEXT NOT NULL DEFAULT '',
    agent_execution_id TEXT NOT NULL DEFAULT '',
    instance_id TEXT NOT NULL DEFAULT '',
    instance TEXT NOT NULL DEFAULT '{}',
    agentctl_pid INTEGER NOT NULL DEFAULT 0,
    agentctl_start_time INTEGER NOT NULL DEFAULT 0,
    agent_pid INTEGER NOT NULL DEFAULT 0,
    agent_start_time INTEGER NOT NULL DEFAULT 0,
    process_group INTEGER NOT NULL DEFAULT 0,
    boot_id TEXT NOT NULL DEFAULT '',
    last_seen_at TEXT NOT NULL DEFAULT '',
    last_event_seq INTEGER NOT NULL DEFAULT 0,
    protocol_state TEXT NOT NULL DEFAULT '',
    metadata TEXT NOT NULL DEFAULT '{}',
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE INDEX executors_by_status ON executors_running (status);

CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    turn_id TEXT,
    seq INTEGER,                          -- null while the prompt is queued (PROMPT-8)
    author_type TEXT NOT NULL,
    type TEXT NOT NULL,
    content TEXT NOT NULL,
    metadata TEXT NOT NULL DEFAULT '{}',
    client_message_id TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX messages_by_place ON messages (session_id, seq) WHERE seq IS NOT NULL;
CREATE UNIQUE INDEX messages_by_client ON messages (session_id, client_message_id) WHERE client_message_id IS NOT NULL;
CREATE INDEX messages_queued ON messages (session_id) WHERE seq IS NULL;

-- Streaming text, in pieces; folded into its message when that closes. `position` counts characters.
CREATE TABLE message_parts (
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (message_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    agent_execution_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    state TEXT NOT NULL,
    line INTEGER NOT NULL DEFAULT 0,      -- number of the prompt's line to the agent; 0: nothing was sent
    stop_reason TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    usage TEXT NOT NULL DEFAULT '{}',
    cancel_requested_at TEXT NOT NULL DEFAULT '',
    started_at TEXT NOT NULL,
    ended_at TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX turns_by_session ON turns (session_id, started_at);
CREATE UNIQUE INDEX turns_open ON turns (session_id) WHERE state IN ('open', 'unknown');  -- one prompt at a time

CREATE TABLE queued_prompts (
    message_id TEXT PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,            -- a prompt that goes back to the head gets a smaller one
    created_at TEXT NOT NULL,
    UNIQUE (session_id, position)
) STRICT;

CREATE TABLE permission_requests (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    turn_id TEXT,
    agent_execution_id TEXT NOT NULL,
    message_id TEXT NOT NULL DEFAULT '',
    rpc_id TEXT NOT NULL,
    tool_call TEXT NOT NULL,
    options TEXT NOT NULL,
    state TEXT NOT NULL,
    answer TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL,
    resolved_at TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX permission_requests_open ON permission_requests (session_id) WHERE state = 'pending';

CREATE TABLE resumes (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    agent_execution_id TEXT NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT NOT NULL DEFAULT '',
    how TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    lost TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    stages TEXT NOT NULL DEFAULT '{}',
    replayed TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX resumes_by_session ON resumes (session_id, started_at);

-- Lines to an agent whose number was given out and whose journal entry was not seen yet.
CREATE TABLE outbox (
    agent_execution_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    session_id TEXT NOT NULL REFERENCES task_sessions (id) ON DELETE CASCADE,
    line BLOB NOT NULL,
    PRIMARY KEY (agent_execution_id, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_by_session ON outbox (session_id);
