"""The page's types of the wire are those of the server's structs."""

import msgspec
from msgspec import inspect

from wire_types import COMMAND, FILE, _interface, _type, text


class Sample(msgspec.Struct):
    """A struct with one field of each kind."""

    name: str
    sizes: list[int]
    owner: str | None = None


def test_the_types_of_the_page_are_current() -> None:
    """page/src/wire/types.ts is what `make types` writes."""
    assert FILE.read_text() == text(), f"write it with: {COMMAND}"


def test_what_is_sent_has_every_field_and_what_is_asked_may_leave_out_the_optional_ones() -> None:
    """A default makes a field optional only in what a client sends."""
    assert "owner: string | null;" in _interface(Sample, optional=False)
    assert "owner?: string | null;" in _interface(Sample, optional=True)
    assert "name: string;" in _interface(Sample, optional=True)


def test_containers_keep_the_type_of_what_they_hold() -> None:
    """A list of numbers is no list of anything."""
    assert _type(inspect.type_info(list[int])) == "readonly (number)[]"
    assert _type(inspect.type_info(dict[str, list[bool]])) == "Readonly<Record<string, readonly (boolean)[]>>"
