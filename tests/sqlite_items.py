"""The smallest database of the tests: one table of items, and statements for it."""

from pathlib import Path

from kandev.store.database import parse_statements

STATEMENTS = parse_statements("""
-- name: put
INSERT INTO items (id, name) VALUES (:id, :name);
-- name: rename
UPDATE items SET name = :name WHERE id = :id RETURNING *;
-- name: get
SELECT * FROM items WHERE id = :id;
-- name: everything
SELECT * FROM items ORDER BY id;
-- name: clear
DELETE FROM items;
""")

TABLE = "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;"


def write_migrations(home: Path) -> Path:
    """Write the one step that makes the table, and return its folder."""
    folder = home / "migrations"
    folder.mkdir()
    (folder / "0001_items.sql").write_text(TABLE)
    return folder
