-- Named statements. A state is only changed where the state that was observed still stands (compare-and-set).

-- ---- tasks

-- name: task_insert
INSERT INTO tasks (id, title, description, state, client_task_id, intent, created_at, updated_at)
VALUES (:id, :title, :description, :state, :client_task_id, :intent, :created_at, :updated_at);

-- name: task_get
SELECT * FROM tasks WHERE id = :id;

-- name: task_by_client
SELECT * FROM tasks WHERE client_task_id = :client_task_id;

-- name: task_page
SELECT * FROM tasks
WHERE (:state = '' OR state = :state) AND (:before_time = '' OR (created_at, id) < (:before_time, :before_id))
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: task_move
UPDATE tasks SET state = :state, updated_at = :now WHERE id = :id AND state = :observed RETURNING *;

-- name: task_set_title
UPDATE tasks SET title = :title, updated_at = :now WHERE id = :id RETURNING *;

-- name: task_set_intent
UPDATE tasks SET intent = :intent, updated_at = :now WHERE id = :id;

-- name: task_delete
DELETE FROM tasks WHERE id = :id;

-- name: task_with_intent
SELECT * FROM tasks WHERE intent <> '';

-- ---- sessions

-- name: session_insert
INSERT INTO task_sessions (id, task_id, agent, agent_config, runtime, state, model, mode, repository_path, workspace,
    recap_pending, recap_of, created_at, updated_at)
VALUES (:id, :task_id, :agent, :agent_config, :runtime, :state, :model, :mode, :repository_path, :workspace,
    :recap_pending, :recap_of, :created_at, :updated_at);

-- name: session_get
SELECT id, task_id, agent, runtime, state, model, mode, config_options, repository_path, error_message, interrupted,
    queue_held, parked_reason, failures, intent, recap_pending, created_at, updated_at
FROM task_sessions WHERE id = :id;

-- name: session_recap_of
SELECT recap_of FROM task_sessions WHERE id = :id;

-- name: session_settings
SELECT agent_config, workspace, agent_state FROM task_sessions WHERE id = :id;

-- name: sessions_of_task
SELECT id, task_id, agent, runtime, state, model, mode, config_options, repository_path, error_message, interrupted,
    queue_held, parked_reason, failures, intent, recap_pending, created_at, updated_at
FROM task_sessions WHERE task_id = :task_id ORDER BY created_at, id;

-- name: sessions_in_state
SELECT id, task_id, agent, runtime, state, model, mode, config_options, repository_path, error_message, interrupted,
    queue_held, parked_reason, failures, intent, recap_pending, created_at, updated_at
FROM task_sessions WHERE state = :state;

-- name: sessions_with_intent
SELECT id, task_id, agent, runtime, state, model, mode, config_options, repository_path, error_message, interrupted,
    queue_held, parked_reason, failures, intent, recap_pending, created_at, updated_at
FROM task_sessions WHERE intent <> '';

-- name: session_move
UPDATE task_sessions SET state = :state, error_message = :error_message, updated_at = :now
WHERE id = :id AND state = :observed RETURNING id;

-- name: session_states_of_task
SELECT id, state FROM task_sessions WHERE task_id = :task_id AND id <> :except_id;

-- name: session_set_workspace
UPDATE task_sessions SET workspace = :workspace, updated_at = :now WHERE id = :id;

-- name: session_set_interrupted
UPDATE task_sessions SET interrupted = :interrupted WHERE id = :id AND interrupted <> :interrupted;

-- name: session_set_held
UPDATE task_sessions SET queue_held = :queue_held WHERE id = :id AND queue_held <> :queue_held RETURNING task_id;

-- name: session_set_failures
UPDATE task_sessions SET failures = :failures, parked_reason = :parked_reason WHERE id = :id;

-- name: session_set_intent
UPDATE task_sessions SET intent = :intent, updated_at = :now WHERE id = :id;

-- name: session_set_recap
UPDATE task_sessions SET recap_pending = :recap_pending WHERE id = :id;

-- name: session_set_mode
UPDATE task_sessions SET mode = :mode, updated_at = :now WHERE id = :id;

-- name: session_set_options
UPDATE task_sessions SET config_options = :config_options, updated_at = :now WHERE id = :id;

-- name: session_set_agent_state
UPDATE task_sessions SET agent_state = json_set(agent_state, '$.' || :key, json(:value)) WHERE id = :id;

-- name: session_delete
DELETE FROM task_sessions WHERE id = :id;

-- name: ids_like_task
SELECT id FROM tasks WHERE id >= :prefix AND id < :prefix || 'g' ORDER BY id LIMIT 20;

-- name: ids_like_session
SELECT id, task_id FROM task_sessions WHERE id >= :prefix AND id < :prefix || 'g' ORDER BY id LIMIT 20;

-- name: newest_session_of_task
SELECT id, task_id FROM task_sessions WHERE task_id = :task_id ORDER BY created_at DESC, id DESC LIMIT 1;

-- name: sessions_by_state_count
SELECT state, count(*) AS n FROM task_sessions GROUP BY state;

-- ---- executors_running

-- name: executor_insert
INSERT INTO executors_running (session_id, task_id, runtime, status, worktree_id, worktree_path, worktree_branch,
    created_at, updated_at)
VALUES (:session_id, :task_id, :runtime, :status, :worktree_id, :worktree_path, :worktree_branch, :now, :now);

-- name: executor_get
SELECT * FROM executors_running WHERE session_id = :session_id;

-- name: executors_not_ended
SELECT * FROM executors_running WHERE status IN ('creating', 'starting', 'ready', 'unknown');

-- name: executor_begin
UPDATE executors_running SET status = 'creating', agent_execution_id = :agent_execution_id, instance_id = :instance_id,
    instance = '{}', agentctl_url = '', agentctl_port = 0, agentctl_pid = 0, agentctl_start_time = 0, agent_pid = 0,
    agent_start_time = 0, process_group = 0, container_id = '', boot_id = '', last_event_seq = 0, protocol_state = '',
    last_seen_at = :now, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :observed_execution RETURNING session_id;

-- name: executor_persist
UPDATE executors_running SET status = 'starting', instance = :instance, agentctl_url = :agentctl_url,
    agentctl_port = :agentctl_port, agentctl_pid = :agentctl_pid, agentctl_start_time = :agentctl_start_time,
    container_id = :container_id, boot_id = :boot_id, worktree_id = :worktree_id, worktree_path = :worktree_path,
    worktree_branch = :worktree_branch, last_seen_at = :now, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id RETURNING session_id;

-- name: executor_attach
UPDATE executors_running SET status = 'ready', instance = :instance, agentctl_url = :agentctl_url,
    agentctl_port = :agentctl_port, agentctl_pid = :agentctl_pid, agentctl_start_time = :agentctl_start_time,
    container_id = :container_id, boot_id = :boot_id, last_seen_at = :now, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id RETURNING session_id;

-- name: executor_doubt
UPDATE executors_running SET status = 'unknown', updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id;

-- name: executor_set_agent
UPDATE executors_running SET agent_pid = :agent_pid, agent_start_time = :agent_start_time,
    process_group = :process_group, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id;

-- name: executor_set_status
UPDATE executors_running SET status = :status, last_seen_at = :now, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id RETURNING session_id;

-- name: executor_advance
UPDATE executors_running SET last_event_seq = :last_event_seq, protocol_state = :protocol_state, last_seen_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id RETURNING session_id;

-- name: executor_set_token
UPDATE executors_running SET resume_token = :resume_token,
    last_message_uuid = CASE WHEN :last_message_uuid = '' THEN last_message_uuid ELSE :last_message_uuid END,
    metadata = :metadata, updated_at = :now
WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id RETURNING session_id;

-- name: executor_set_metadata
UPDATE executors_running SET metadata = :metadata, updated_at = :now WHERE session_id = :session_id;

-- name: executor_swap_token
UPDATE executors_running SET resume_token = :resume_token, metadata = :metadata, updated_at = :now
WHERE session_id = :session_id AND resume_token = :observed_token RETURNING session_id;

-- ---- turns

-- name: turn_insert
INSERT INTO turns (id, session_id, agent_execution_id, message_id, state, line, started_at)
VALUES (:id, :session_id, :agent_execution_id, :message_id, 'open', 0, :started_at);

-- name: turn_get
SELECT * FROM turns WHERE id = :id;

-- name: turn_open
SELECT * FROM turns WHERE session_id = :session_id AND state IN ('open', 'unknown');

-- name: turn_last
SELECT * FROM turns WHERE session_id = :session_id ORDER BY started_at DESC, id DESC LIMIT 1;

-- name: turns_interrupted
SELECT turns.id AS turn_id, turns.started_at, turns.ended_at, turns.message_id, prompt.content AS prompt,
    prompt.seq AS place, coalesce(again.id, '') AS sent_again
FROM turns JOIN messages AS prompt ON prompt.id = turns.message_id
LEFT JOIN messages AS again ON again.session_id = turns.session_id AND again.client_message_id = :again || turns.id
WHERE turns.session_id = :session_id AND turns.state = 'interrupted'
ORDER BY turns.started_at DESC, turns.id DESC LIMIT :limit;

-- name: turn_tool_calls_unknown
SELECT id AS message_id, content AS title, coalesce(json_extract(metadata, '$.kind'), '') AS kind FROM messages
WHERE session_id = :session_id AND seq > :place AND turn_id = :turn_id AND type = 'tool_call'
    AND json_extract(metadata, '$.status') = 'unknown'
    AND seq < coalesce((SELECT seq FROM messages WHERE session_id = :session_id AND seq > :place
        AND author_type = 'user' ORDER BY seq LIMIT 1), 1 << 62)
ORDER BY seq LIMIT :limit;

-- name: turn_any
SELECT 1 AS one FROM turns WHERE session_id = :session_id LIMIT 1;

-- name: turn_set_line
UPDATE turns SET line = :line WHERE id = :id AND state = 'open';

-- name: turn_end
UPDATE turns SET state = :state, stop_reason = :stop_reason, error = :error, usage = :usage, ended_at = :now
WHERE id = :id AND state IN ('open', 'unknown') RETURNING *;

-- name: turn_doubt
UPDATE turns SET state = :state WHERE session_id = :session_id AND state = :observed;

-- name: turn_cancel_request
UPDATE turns SET cancel_requested_at = :now
WHERE session_id = :session_id AND state IN ('open', 'unknown') RETURNING *;

-- name: turn_delete
DELETE FROM turns WHERE id = :id AND state IN ('open', 'unknown');

-- ---- messages

-- name: message_insert
INSERT INTO messages (id, session_id, turn_id, seq, author_type, type, content, metadata, client_message_id,
    created_at, updated_at)
VALUES (:id, :session_id, :turn_id, :seq, :author_type, :type, :content, :metadata, :client_message_id,
    :created_at, :updated_at);

-- name: message_update
UPDATE messages SET content = :content, metadata = :metadata, updated_at = :updated_at WHERE id = :id;

-- name: message_set_metadata
UPDATE messages SET metadata = :metadata, updated_at = :now WHERE id = :id;

-- name: message_part_insert
INSERT INTO message_parts (message_id, position, content) VALUES (:message_id, :position, :content);

-- name: message_fold
UPDATE messages SET updated_at = :now, metadata = json_remove(metadata, '$.streaming'),
    content = content || coalesce((SELECT group_concat(content, '')
        FROM (SELECT content FROM message_parts WHERE message_id = :id ORDER BY position)), '')
WHERE id = :id RETURNING *;

-- name: message_parts_delete
DELETE FROM message_parts WHERE message_id = :message_id;

-- name: message_get
SELECT messages.*, (SELECT group_concat(content, '')
    FROM (SELECT content FROM message_parts WHERE message_id = messages.id ORDER BY position)) AS parts
FROM messages WHERE id = :id;

-- name: message_by_client
SELECT * FROM messages WHERE session_id = :session_id AND client_message_id = :client_message_id;

-- name: message_take_place
UPDATE messages SET seq = :seq, turn_id = :turn_id, updated_at = :now WHERE id = :id RETURNING *;

-- name: message_leave_place
UPDATE messages SET seq = NULL, turn_id = NULL, updated_at = :now WHERE id = :id RETURNING *;

-- name: message_delete
DELETE FROM messages WHERE id = :id;

-- name: messages_before
SELECT messages.*, (SELECT group_concat(content, '')
    FROM (SELECT content FROM message_parts WHERE message_id = messages.id ORDER BY position)) AS parts
FROM messages WHERE session_id = :session_id AND seq < :before ORDER BY seq DESC LIMIT :limit;

-- name: messages_after
SELECT messages.*, (SELECT group_concat(content, '')
    FROM (SELECT content FROM message_parts WHERE message_id = messages.id ORDER BY position)) AS parts
FROM messages WHERE session_id = :session_id AND seq > :after ORDER BY seq LIMIT :limit;

-- name: messages_max_seq
SELECT coalesce(max(seq), 0) AS seq FROM messages WHERE session_id = :session_id AND seq IS NOT NULL;

-- ---- search

-- name: search_note
INSERT OR IGNORE INTO searchable (message_id) VALUES (:message_id);

-- name: search_waiting
SELECT max(id) AS last FROM (SELECT id FROM searchable
    WHERE id > (SELECT indexed_to FROM search_progress) ORDER BY id LIMIT :limit);

-- name: search_fill
INSERT INTO search_index (rowid, title, content) SELECT id, title, content FROM search_texts
WHERE id > (SELECT indexed_to FROM search_progress) AND id <= :last;

-- name: search_advance
UPDATE search_progress SET indexed_to = :last;

-- name: search_messages
SELECT messages.id, messages.session_id, tasks.id AS task_id, tasks.title, messages.seq, messages.author_type,
    messages.type, messages.created_at, snippet(search_index, 1, char(2), char(3), '…', 24) AS marked
FROM search_index JOIN searchable ON searchable.id = search_index.rowid
JOIN messages ON messages.id = searchable.message_id JOIN task_sessions ON task_sessions.id = messages.session_id
JOIN tasks ON tasks.id = task_sessions.task_id
WHERE search_index MATCH :query AND messages.seq IS NOT NULL AND (:task_id = '' OR tasks.id = :task_id)
ORDER BY search_index.rowid DESC LIMIT :limit;

-- name: search_titles
SELECT tasks.id, coalesce((SELECT id FROM task_sessions WHERE task_id = tasks.id
        ORDER BY created_at DESC, id DESC LIMIT 1), '') AS session_id,
    tasks.id AS task_id, tasks.title, NULL AS seq, 'user' AS author_type, 'title' AS type, tasks.created_at,
    snippet(search_index, 0, char(2), char(3), '…', 24) AS marked
FROM search_index JOIN searchable ON searchable.id = search_index.rowid JOIN tasks ON tasks.id = searchable.title_of
WHERE search_index MATCH :query AND (:task_id = '' OR tasks.id = :task_id)
ORDER BY search_index.rowid DESC LIMIT :limit;

-- ---- queue

-- name: queue_insert_last
INSERT INTO queued_prompts (message_id, session_id, position, created_at)
SELECT :message_id, :session_id, coalesce(max(position), 0) + 1, :created_at
FROM queued_prompts WHERE session_id = :session_id;

-- name: queue_insert_first
INSERT INTO queued_prompts (message_id, session_id, position, created_at)
SELECT :message_id, :session_id, coalesce(min(position), 1) - 1, :created_at
FROM queued_prompts WHERE session_id = :session_id;

-- name: queue_list
SELECT queued_prompts.*, messages.content FROM queued_prompts JOIN messages ON messages.id = queued_prompts.message_id
WHERE queued_prompts.session_id = :session_id ORDER BY position;

-- name: queue_head
SELECT queued_prompts.*, messages.content FROM queued_prompts JOIN messages ON messages.id = queued_prompts.message_id
WHERE queued_prompts.session_id = :session_id ORDER BY position LIMIT 1;

-- name: queue_take
DELETE FROM queued_prompts WHERE message_id = :message_id AND session_id = :session_id RETURNING message_id;

-- name: queues_open
SELECT DISTINCT queued_prompts.session_id FROM queued_prompts
JOIN task_sessions ON task_sessions.id = queued_prompts.session_id
WHERE task_sessions.queue_held = '' AND task_sessions.state IN ('CREATED', 'STARTING', 'RUNNING', 'WAITING_FOR_INPUT');

-- ---- permissions

-- name: permission_insert
INSERT INTO permission_requests (id, session_id, turn_id, agent_execution_id, message_id, rpc_id, tool_call, options,
    state, answer, created_at, resolved_at)
VALUES (:id, :session_id, :turn_id, :agent_execution_id, :message_id, :rpc_id, :tool_call, :options,
    :state, :answer, :created_at, :resolved_at);

-- name: permission_get
SELECT * FROM permission_requests WHERE id = :id;

-- name: permissions_pending
SELECT * FROM permission_requests WHERE session_id = :session_id AND state = 'pending' ORDER BY created_at;

-- name: permissions_pending_all
SELECT * FROM permission_requests WHERE state = 'pending' ORDER BY created_at;

-- name: permission_resolve
UPDATE permission_requests SET state = :state, answer = :answer, resolved_at = :now
WHERE id = :id AND state = 'pending' RETURNING *;

-- name: permissions_close
UPDATE permission_requests SET state = :state, resolved_at = :now
WHERE session_id = :session_id AND state = 'pending' RETURNING *;

-- ---- resumes

-- name: resume_insert
INSERT INTO resumes (id, session_id, agent_execution_id, started_at, ended_at, how, reason, lost, error, stages, replayed,
    after_seq)
VALUES (:id, :session_id, :agent_execution_id, :started_at, :ended_at, :how, :reason, :lost, :error, :stages, :replayed,
    :after_seq);

-- name: resume_set_replayed
UPDATE resumes SET replayed = :replayed WHERE session_id = :session_id AND agent_execution_id = :agent_execution_id;

-- name: resumes_of_session
SELECT * FROM resumes WHERE session_id = :session_id ORDER BY started_at DESC LIMIT :limit;

-- name: resumes_behind
SELECT * FROM resumes WHERE session_id = :session_id AND after_seq BETWEEN :first AND :last
ORDER BY started_at DESC LIMIT :limit;

-- ---- outbox

-- name: outbox_insert
INSERT INTO outbox (agent_execution_id, n, session_id, line) VALUES (:agent_execution_id, :n, :session_id, :line);

-- name: outbox_of
SELECT n, line FROM outbox WHERE agent_execution_id = :agent_execution_id ORDER BY n;

-- name: outbox_written
DELETE FROM outbox WHERE agent_execution_id = :agent_execution_id AND n <= :n;

-- name: outbox_clear
DELETE FROM outbox WHERE session_id = :session_id;


-- ---- agents

-- name: agent_version_put
INSERT INTO agent_versions (agent, version, program, initialize, first_seen_at, seen_at)
VALUES (:agent, :version, :program, :initialize, :now, :now)
ON CONFLICT (agent, version) DO UPDATE SET program = :program, initialize = :initialize, seen_at = :now;

-- name: agent_version_refuses
UPDATE agent_versions SET refuses_restore = 1 WHERE agent = :agent AND version = :version;

-- name: agent_version_get
SELECT * FROM agent_versions WHERE agent = :agent AND version = :version;

-- name: agent_versions_of
SELECT * FROM agent_versions WHERE agent = :agent ORDER BY seen_at DESC, first_seen_at DESC LIMIT :limit;

-- name: agent_login_needed
INSERT INTO agent_logins (agent, state, said, at) VALUES (:agent, 'needed', :said, :now)
ON CONFLICT (agent) DO UPDATE SET state = 'needed', said = :said, at = :now;

-- name: agent_login_worked
INSERT INTO agent_logins (agent, state, at) VALUES (:agent, 'worked', :now)
ON CONFLICT (agent) DO UPDATE SET state = 'worked', said = '', at = :now WHERE state <> 'worked';

-- name: agent_login_open
DELETE FROM agent_logins WHERE agent = :agent AND state = 'needed';

-- name: agent_login_get
SELECT * FROM agent_logins WHERE agent = :agent;
