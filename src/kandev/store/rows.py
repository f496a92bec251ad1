"""From rows to models and back: JSON columns are decoded, the rest is taken as it stands."""

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kandev.domain.models import Message

T = TypeVar("T", bound=msgspec.Struct)

JSON_COLUMNS = frozenset(
    {
        "config_options",
        "failures",
        "initialize",
        "instance",
        "metadata",
        "usage",
        "tool_call",
        "options",
        "stages",
        "replayed",
    }
)
BOOLEANS = frozenset({"interrupted", "recap_pending", "refuses_restore"})
_encoder = msgspec.json.Encoder()


def to_json(value: Any) -> str:
    """Return the stored form of a JSON column."""
    return _encoder.encode(value).decode()


def from_row(kind: type[T], row: sqlite3.Row) -> T:
    """Return the model of a row. Columns that the model does not have are left out."""
    data: dict[str, Any] = {}
    for name in row.keys():  # noqa: SIM118 - a Row iterates over its values
        value = row[name]
        if name in JSON_COLUMNS:
            value = msgspec.json.decode(value)
        elif name in BOOLEANS:
            value = bool(value)
        data[name] = value
    return msgspec.convert(data, kind)


def message_from_row(row: sqlite3.Row) -> Message:
    """Return a message, its streamed parts joined on where the statement brings them."""
    message = from_row(Message, row)
    parts = row["parts"] if "parts" in row.keys() else None  # noqa: SIM118 - a Row iterates over its values
    return msgspec.structs.replace(message, content=message.content + parts) if parts else message


def message_args(message: Message) -> Mapping[str, Any]:
    """Return the arguments of `message_insert` and `message_update`."""
    return {
        "id": message.id,
        "session_id": message.session_id,
        "turn_id": message.turn_id,
        "seq": message.seq,
        "author_type": message.author_type,
        "type": message.type,
        "content": message.content,
        "metadata": to_json(message.metadata),
        "client_message_id": message.client_message_id,
        "created_at": message.created_at,
        "updated_at": message.updated_at,
    }
