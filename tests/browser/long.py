"""A transcript of any length, without the time that saying it would take."""

import sqlite3

from browser.stage import Session, Stage


def lengthen(stage: Stage, session: Session, entries: int) -> None:
    """Puts so many messages into the transcript while no backend runs."""
    stage.stop()
    stamp = "2026-11-29T12:00:00.000Z"

    def row(n: int) -> tuple[str, str, int, str, str]:
        author = "agent" if n % 10 else "user"
        return f"{n:020x}", session.id, n, author, f"entry {n} says **something** with `code`"

    with sqlite3.connect(stage.backend.home / "kandev.db") as database:
        database.executemany(
            "INSERT INTO messages (id, session_id, seq, author_type, type, content, created_at, updated_at)"
            f" VALUES (?, ?, ?, ?, 'message', ?, '{stamp}', '{stamp}')",
            map(row, range(100, entries + 1)),
        )
    stage.start()
