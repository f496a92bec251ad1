-- Full-text search over titles, messages and thinking. Streaming text is not in it until its message closes.
-- Whoever closes a message notes it in `searchable`; the index is filled later, in pieces (kandev.orchestrator.search).
-- No trigger on inserts and updates of messages: one that does nothing costs a tool call 1 to 2 µs.
-- The text of a message that is closed does not change, so only its end has to be heard of.
-- Ids of its own: VACUUM may renumber the rowids of tables whose key is text, and the index keeps numbers.

CREATE TABLE searchable (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT UNIQUE REFERENCES messages (id) ON DELETE CASCADE,
    title_of TEXT UNIQUE REFERENCES tasks (id) ON DELETE CASCADE,
    CHECK ((message_id IS NULL) <> (title_of IS NULL))
) STRICT;

CREATE TABLE search_progress (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    indexed_to INTEGER NOT NULL           -- entries of `searchable` up to this one are in the index
) STRICT;
INSERT INTO search_progress (id, indexed_to) VALUES (1, 0);

-- What the index holds of each: the first 16,384 characters. Removing from it needs the very same text again.
CREATE VIEW search_texts AS
SELECT searchable.id AS id, substr(tasks.title, 1, 16384) AS title, substr(messages.content, 1, 16384) AS content
FROM searchable LEFT JOIN messages ON messages.id = searchable.message_id
LEFT JOIN tasks ON tasks.id = searchable.title_of;

CREATE VIRTUAL TABLE search_index USING fts5 (
    title, content, content = 'search_texts', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TRIGGER search_message_deleted BEFORE DELETE ON messages
WHEN old.type IN ('message', 'thinking')
BEGIN
    INSERT INTO search_index (search_index, rowid, title, content)
        SELECT 'delete', id, NULL, substr(old.content, 1, 16384) FROM searchable
        WHERE message_id = old.id AND id <= (SELECT indexed_to FROM search_progress);
    DELETE FROM searchable WHERE message_id = old.id;
END;

CREATE TRIGGER search_title_added AFTER INSERT ON tasks
BEGIN
    INSERT INTO searchable (title_of) VALUES (new.id);
END;

CREATE TRIGGER search_title_before_change BEFORE UPDATE OF title ON tasks
BEGIN
    INSERT INTO search_index (search_index, rowid, title, content)
        SELECT 'delete', id, substr(old.title, 1, 16384), NULL FROM searchable
        WHERE title_of = old.id AND id <= (SELECT indexed_to FROM search_progress);
    DELETE FROM searchable WHERE title_of = old.id;
END;

CREATE TRIGGER search_title_changed AFTER UPDATE OF title ON tasks
BEGIN
    INSERT INTO searchable (title_of) VALUES (new.id);
END;

CREATE TRIGGER search_title_deleted BEFORE DELETE ON tasks
BEGIN
    INSERT INTO search_index (search_index, rowid, title, content)
        SELECT 'delete', id, substr(old.title, 1, 16384), NULL FROM searchable
        WHERE title_of = old.id AND id <= (SELECT indexed_to FROM search_progress);
    DELETE FROM searchable WHERE title_of = old.id;
END;

INSERT INTO searchable (title_of) SELECT id FROM tasks ORDER BY created_at, id;
INSERT INTO searchable (message_id) SELECT id FROM messages
    WHERE type IN ('message', 'thinking') AND json_extract(metadata, '$.streaming') IS NULL ORDER BY created_at, id;
