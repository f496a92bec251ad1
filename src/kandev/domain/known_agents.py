"""What a backend learned of the agents that ran: what each version said of itself, and whether a login was wanted."""

from typing import Any, Literal

import msgspec


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an agent, as it last introduced itself. `version` is '' for one that tells none.

    `initialize` is its answer as it stands; {} where that was too large to keep. `refuses_restore`: it offers to
    restore sessions and then does not know the method, so it is not asked again (TOK-8).
    """

    agent: str
    version: str
    program: str
    initialize: dict[str, Any]
    refuses_restore: bool
    first_seen_at: str
    seen_at: str


class KnownLogin(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent last let know of its login: it asked for one, with `said` its words; or a turn ended since."""

    agent: str
    state: Literal["needed", "worked"]
    said: str
    at: str


class LoginMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One of the agent's own ways to log in; `command` is what a person runs in a terminal, '' where it tells none."""

    id: str
    name: str
    description: str
    command: str


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """What a person needs for a login: whether one is needed, in whose words and since when, and how it is done."""

    state: Literal["needed", "worked", "unknown"]
    said: str
    at: str
    command: str
    methods: tuple[LoginMethod, ...]
