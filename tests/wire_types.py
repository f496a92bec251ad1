"""The page's types of the wire, from the server's structs: `PYTHONPATH=tests python -m wire_types --write`.

What the server sends has every field; in what a client sends, a field with a default may be left out.
"""

import sys
from collections.abc import Iterable, Iterator
from enum import EnumMeta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from kandev.domain import models
from kandev.domain.known_agents import LoginMethod, LoginView
from kandev.gateway.actions import _TABLE
from kandev.gateway.board import BoardEntry
from kandev.gateway.hub import BOARD_ACTIONS, Since
from kandev.orchestrator.search import Hit
from kandev.orchestrator.views import ResumeAnswer, SessionStatus, SessionView

FILE = Path(__file__).parents[1] / "page/src/wire/types.ts"
COMMAND = "make types"

SENT: tuple[type[msgspec.Struct], ...] = (
    models.Task, models.Turn, models.Message, models.QueuedPrompt, models.PermissionRequest, models.ResumeOutcome,
    SessionView, SessionStatus, ResumeAnswer, BoardEntry, Since, LoginMethod, LoginView, Hit,
)  # fmt: skip
"""What answers and notifications hold."""

ENUMS: tuple[EnumMeta, ...] = (
    models.SessionState, models.TaskState, models.TurnState, models.PermissionState, models.HoldReason,
)  # fmt: skip

HEAD = """\
// The types of the wire, written by `make types` from the server's structs. Not edited by hand.
"""

PLAIN: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.IntType: "number",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
    inspect.AnyType: "unknown",
    inspect.RawType: "unknown",
}


def text() -> str:
    """What the file should hold."""
    requests = dict.fromkeys(struct for struct, _ in _TABLE.values())
    parts = [
        HEAD,
        *(_enum(one) for one in ENUMS),
        *(_interface(struct, optional=False) for struct in SENT),
        *(_interface(struct, optional=True) for struct in requests),
        _actions(),
        _names("BOARD_NOTIFICATIONS", sorted(BOARD_ACTIONS)),
    ]
    return "\n".join(parts)


def _enum(enum: EnumMeta) -> str:
    values = [str(member.value) for member in enum]  # type: ignore[var-annotated]  # an EnumMeta yields its members
    return f"export type {enum.__name__} = {' | '.join(map(_quoted, values))};\n"


def _interface(struct: type[msgspec.Struct], *, optional: bool) -> str:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    fields = [
        f"  readonly {field.encode_name}{'?' if optional and not field.required else ''}: {_type(field.type)};\n"
        for field in info.fields
    ]
    name = _request_name(struct) if optional else struct.__name__
    return f"export interface {name} {{\n{''.join(fields)}}}\n" if fields else f"export type {name} = object;\n"


def _request_name(struct: type[msgspec.Struct]) -> str:
    return f"{struct.__name__}Request"


def _actions() -> str:
    lines = [f"  readonly {_quoted(action)}: {_request_name(struct)};\n" for action, (struct, _) in _TABLE.items()]
    return f"export interface Requests {{\n{''.join(lines)}}}\n"


def _names(constant: str, names: Iterable[str]) -> str:
    lines = "".join(f"  {_quoted(name)},\n" for name in names)
    return f"export const {constant} = [\n{lines}] as const;\n"


def _type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return " | ".join(dict.fromkeys(_type(part) for part in kind.types))
    if isinstance(kind, inspect.LiteralType):
        return " | ".join(_literals(kind.values))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.TupleType):
        return _list(kind)
    if isinstance(kind, inspect.DictType):
        return f"Readonly<Record<string, {_type(kind.value_type)}>>"
    if isinstance(kind, inspect.StructType | inspect.EnumType):
        return kind.cls.__name__
    return PLAIN[type(kind)]


def _list(kind: inspect.ListType | inspect.VarTupleType | inspect.TupleType) -> str:
    if isinstance(kind, inspect.TupleType):
        return f"readonly [{', '.join(map(_type, kind.item_types))}]"
    return f"readonly ({_type(kind.item_type)})[]"


def _literals(values: Iterable[Any]) -> Iterator[str]:
    return (_quoted(str(value)) for value in values)


def _quoted(value: str) -> str:
    return f'"{value}"'


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is current."""
    if "--write" in arguments:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text())
        return 0
    return 0 if FILE.read_text() == text() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
