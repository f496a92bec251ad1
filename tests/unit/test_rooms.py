"""The structure that docs/architecture.md draws, kept true: imports go inwards only."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kandev

ROOT = Path(kandev.__file__).parent

# Outer rings may import inner ones. Within a ring, only what BESIDE names.
RINGS = (
    {"errors"},
    {"domain", "agentctl", "home", "home_lock", "logs", "supervisor"},
    {"protocols", "store", "agents"},
    {"config", "worktrees"},
    {"lifecycle", "runtimes"},
    {"orchestrator"},
    {"gateway"},
    {"app"},
    {"program"},
    {"cli", "demo", "library"},
    {"__main__", "__init__"},
)
# demo/show.py is a program of the command line: it talks to its backend as the command line does.
BESIDE = {("lifecycle", "runtimes"), ("cli", "demo"), ("demo", "cli"), ("__main__", "cli")}
RING_OF = {room: number for number, ring in enumerate(RINGS) for room in ring}

# What any room may take from the package itself: `import kandev` for kandev.__version__, or that name.
VERSION = {"", "__version__"}

# Rooms that others start as programs of their own, and what these may import besides the standard library.
ALONE = {"agentctl": {"kandev.agentctl", "h11"}, "demo/agent.py": set()}

PURE = {"domain", "protocols"}
EFFECTS = {
    "asyncio", "concurrent", "fcntl", "http", "io", "multiprocessing", "os", "pathlib", "select", "selectors", "shutil",
    "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "urllib",
}  # fmt: skip
SLOW_TO_IMPORT = {"starlette", "uvicorn", "rich", "sqlite3", "hypothesis", "prometheus_client"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import in a file, wherever it stands; `from kandev import x` counts as kandev.x."""
    package = ("kandev", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def files(under: str = "") -> list[Path]:
    place = ROOT / under
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def allowed(importer: str, imported: str) -> bool:
    inner = RING_OF.get(imported, len(RINGS)) < RING_OF[importer]
    return inner or importer == imported or (importer, imported) in BESIDE


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_inwards_only(path: Path) -> None:
    """A module imports its own room and rooms of inner rings, so that a reader of the inside needs nothing outside."""
    room = room_of(path)
    assert room in RING_OF, f"{room} has no ring: give it one in {__file__} and in docs/architecture.md"
    outward = []
    for line, name in imports(path):
        head, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if head == "kandev" and other not in VERSION and not allowed(room, other):
            outward.append(f"line {line}: {name}")
    assert not outward


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_import_nothing_that_has_effects(room: str) -> None:
    """The domain and the protocols are bytes in, values out: they cannot touch a file, a socket or a process."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files(room)
        for line, name in imports(path)
        if name.partition(".")[0] in EFFECTS
    ]
    assert not found


@pytest.mark.parametrize("place", sorted(ALONE))
def test_programs_that_run_elsewhere_bring_nothing_along(place: str) -> None:
    """The sidecar runs where only Python and h11 are, and the demo agent where only Python is."""
    foreign = []
    for path in files(place):
        for line, name in imports(path):
            known = name.partition(".")[0] in sys.stdlib_module_names
            if not known and not any(f"{name}.".startswith(f"{ours}.") for ours in ALONE[place]):
                foreign.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not foreign


def test_the_command_line_starts_without_the_server() -> None:
    """Every command answers at once, because web server, database and drawing are imported only where they are used."""
    program = "import sys, kandev.cli.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert SLOW_TO_IMPORT.isdisjoint(done.stdout.split())


def test_the_server_starts_without_what_only_some_runtimes_need() -> None:
    """Whoever uses neither containers nor sandboxes does not pay for their clients, in time or memory."""
    program = "import sys, kandev.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"aiohttp", "aiodocker", "asyncssh", "cryptography"}.isdisjoint(done.stdout.split())
