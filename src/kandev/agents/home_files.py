"""What an agent keeps in the user's home: its sessions, its login, a setting of its own. Nothing is written.

A place is a path that begins with `~`, or with `${NAME:-default}`: the variable's value, or the default where it is
not set. What is looked at is the agent's environment, which may differ from the backend's.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from kandev.agents.base import AgentConfig

SETTINGS_BYTES = 1 << 20

_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)  # allowed in the settings of several agents
_PLACE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\}")


def locate(place: str, environ: Mapping[str, str]) -> Path:
    """Return the path that a place means with this environment."""
    text = _PLACE.sub(lambda found: environ.get(found[1]) or found[2], place, count=1)
    home = environ.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return Path(text)


def session_directory(config: AgentConfig, environ: Mapping[str, str]) -> str:
    """Return where the agent keeps its sessions; empty where that is not known."""
    return str(locate(config.session_directory, environ)) if config.session_directory else ""


def credentials_found(config: AgentConfig, environ: Mapping[str, str]) -> list[str]:
    """Return which of the agent's credentials are there: names of variables, paths of files. Never what they hold.

    None found says little (a keyring cannot be looked into), and one found may have expired.
    """
    found = []
    for credential in config.credentials:
        if credential.startswith("$") and not credential.startswith("${"):
            found += [credential[1:]] if environ.get(credential[1:]) else []
        elif (path := locate(credential, environ)).is_file():
            found.append(str(path))
    return found


def setting_wanted(config: AgentConfig, environ: Mapping[str, str]) -> str:
    """Return, in a sentence, the setting without which the agent loses sessions that it restores; '' where all is well.

    Only for an agent that restores natively. A file that cannot be read counts as one without the setting.
    """
    needed = config.restore_needs
    if needed is None or not config.session.native_session_resume:
        return ""
    path = locate(needed.file, environ)
    if _setting(path, needed.key) == needed.value:
        return ""
    value = json.dumps(needed.value)
    for name in reversed(needed.key):
        value = f'{{"{name}": {value}}}'
    return f"{config.display_name} loses sessions: {needed.why}. Put {value} into {path}."


def _setting(path: Path, key: tuple[str, ...]) -> object:
    try:
        with path.open("rb") as file:
            value = json.loads(_COMMENT.sub("", file.read(SETTINGS_BYTES).decode()))
    except (OSError, ValueError, RecursionError):
        return None
    for name in key:
        value = value.get(name) if isinstance(value, dict) else None
    return value
