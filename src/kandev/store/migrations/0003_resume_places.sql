-- Where in the transcript a start of the agent belongs: behind the message with this place.

ALTER TABLE resumes ADD COLUMN after_seq INTEGER NOT NULL DEFAULT 0;

UPDATE resumes SET after_seq = (SELECT coalesce(max(seq), 0) FROM messages
    WHERE messages.session_id = resumes.session_id AND messages.created_at <= resumes.started_at);
