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
