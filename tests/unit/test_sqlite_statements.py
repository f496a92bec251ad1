import pytest

from kandev.errors import Internal
from kandev.store.database import parse_statements


def test_statements_are_found_by_name() -> None:
    """Each name line begins a statement that ends at the next name line."""
    found = parse_statements(
        "-- The sessions.\n\n-- name: get\nSELECT 1;\n\n--name:put\n-- why\nINSERT INTO t\nVALUES (';');\n"
    )
    assert found == {"get": "SELECT 1;", "put": "-- why\nINSERT INTO t\nVALUES (';');"}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1;\n-- name: a\nSELECT 2;",
        "-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;",
        "-- name: \nSELECT 1;",
        "-- name: Not One\nSELECT 1;",
        "-- name: a\n-- name: b\nSELECT 1;",
        "-- name: a\nSELECT 1",
        "-- name: a\nSELECT 1; SELECT 2;",
        "-- name: a\nSELECT 'open;",
    ],
    ids=["before", "twice", "no-name", "bad-name", "empty", "no-end", "two", "open-quote"],
)
def test_unclear_statements_are_refused_at_load(text: str) -> None:
    """A text of which it is not certain what a name means is an error before anything runs."""
    with pytest.raises(Internal):
        parse_statements(text)


def test_a_file_without_statements_is_empty() -> None:
    """Comments alone name nothing."""
    assert parse_statements("-- nothing yet\n") == {}
