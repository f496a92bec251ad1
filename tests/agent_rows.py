"""The table of docs/agents.md that says how each built-in agent is started: `PYTHONPATH=tests python -m agent_rows`.

It stands between two markers and is written from the agents' own definitions.
"""

from pathlib import Path

from kandev.agents import BUILT_IN
from kandev.agents.base import AgentConfig, SessionConfig

CHECKOUT = Path(__file__).parent.parent
DOCUMENT = CHECKOUT / "docs/agents.md"
BEGIN = "<!-- agents: written by tests/agent_rows.py -->"
END = "<!-- end of the agents -->"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m agent_rows"


def table() -> str:
    """The lines between the markers."""
    head = "| agent | command | protocol | flags | log in with | keeps its sessions in | variables that it gets |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *map(_row, BUILT_IN.values())])


def _row(agent: AgentConfig) -> str:
    cells = (
        f"`{agent.name}`",
        f"`{' '.join(agent.command)}`",
        agent.protocol,
        _flags(agent.session),
        f"`{agent.login_hint}`" if agent.login_hint else "",
        f"`{agent.session_directory}`" if agent.session_directory else "",
        ", ".join(f"`{name}`" for name in agent.env_allow),
    )
    return f"| {' | '.join(cells)} |"


def _flags(session: SessionConfig) -> str:
    """What differs from an agent that can do nothing, as it would stand in config.toml."""
    given = []
    for name in session.__struct_fields__:
        value = getattr(session, name)
        if value is True:
            given.append(f"`{name}`")
        elif value:
            given.append(f"`{name} = {' '.join(value) if isinstance(value, tuple) else value}`")
    return ", ".join(given) or "none"


def with_table(text: str) -> str:
    """The document with the table between its markers."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
