-- What was learned of the agents that ran. Nothing here is of a session, and all of it is learned again if it is lost.

CREATE TABLE agent_versions (
    agent TEXT NOT NULL,                  -- its name here
    version TEXT NOT NULL,                -- '' where it tells none
    program TEXT NOT NULL DEFAULT '',     -- its own name for itself
    initialize TEXT NOT NULL,             -- its last answer to initialize: capabilities, ways to log in
    refuses_restore INTEGER NOT NULL DEFAULT 0, -- it offers to restore sessions, and does not know how (TOK-8)
    first_seen_at TEXT NOT NULL,
    seen_at TEXT NOT NULL,
    PRIMARY KEY (agent, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_logins (
    agent TEXT PRIMARY KEY,
    state TEXT NOT NULL,                  -- needed: it asked for a login; worked: a turn ended after that
    said TEXT NOT NULL DEFAULT '',        -- in the agent's words
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
