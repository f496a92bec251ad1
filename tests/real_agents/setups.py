"""How each real agent is pointed at the fake model server: its variables, and files in a home of its own.

Keys are dummies. What an agent would ask of other hosts (updates, telemetry, lists of models or plugins) is off by the
variables and settings that it documents for that.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

KEY = "sk-test"

CODEX_CONFIG = """\
model = "gpt-5"
model_provider = "fake"
approval_policy = "on-request"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

# At its start it would ask another host for the list of its plugins.
[features]
plugins = false

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
requires_openai_auth = false
request_max_retries = 1
stream_max_retries = 0
"""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Variables and files of one agent. `{url}` in a value is the model server's address; files lie in its home.

    `command` and `lines` are for an agent that the product does not have built in: its table of config.toml.
    """

    env: Mapping[str, str] = {}
    files: Callable[[str], Mapping[str, str]] = lambda _url: {}
    command: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def environment(self, url: str) -> dict[str, str]:
        """The agent's own variables."""
        return {name: value.replace("{url}", url) for name, value in self.env.items()}

    def write_files(self, home: Path, url: str) -> None:
        """Puts the agent's settings into its home."""
        for name, text in self.files(url).items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _codex_files(url: str) -> dict[str, str]:
    return {".codex/config.toml": CODEX_CONFIG.replace("{url}", url)}


def _gemini_files(_url: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "sessionRetention": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _opencode_files(url: str) -> dict[str, str]:
    model = {"name": "fake", "tool_call": True, "limit": {"context": 200000, "output": 8192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # comes with it
        "name": "fake",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"fake-model": model},
    }
    settings = {
        "model": "fake/fake-model",
        "small_model": "fake/fake-model",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"fake": provider},
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


_CLAUDE = Setup(
    env={
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": KEY,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
)

SETUPS: Mapping[str, Setup] = {
    "codex": Setup(env={"OPENAI_API_KEY": KEY, "NO_BROWSER": "1"}, files=_codex_files),
    "claude-code": _CLAUDE,
    "claude-acp": _CLAUDE,
    "copilot": Setup(
        env={
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": "fake-model",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        }
    ),
    "opencode": Setup(
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}, files=_opencode_files
    ),
    "gemini": Setup(
        env={
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": "{url}",
            "GEMINI_TELEMETRY_ENABLED": "false",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_FORCE_FILE_STORAGE": "true",
        },
        files=_gemini_files,
    ),
    "fast-agent": Setup(
        command=("fast-agent", "acp", "-x", "--model", "generic.fake-model"),
        lines=("native_session_resume = true",),
        env={"GENERIC_API_KEY": KEY, "GENERIC_BASE_URL": "{url}/v1"},
    ),
    # Its dialogue with its model is private, so no prompt is tried; it takes any token that names a server.
    "auggie": Setup(
        env={
            "AUGMENT_SESSION_AUTH": '{"accessToken":"' + KEY + '","tenantURL":"{url}/","scopes":["read","write"]}',
            "AUGMENT_DISABLE_AUTO_UPDATE": "1",
        }
    ),
}
