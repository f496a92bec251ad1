"""Which calls of the code have a failpoint of their own before and behind them, read from the code itself.

Of two such calls in one function each has its own two: what stands between them is not shared.
"""

import ast
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import kandev

ROOT = Path(kandev.__file__).parent
PROGRAMS_OF_A_PERSON = ("cli", "demo")
"""Rooms that are neither the backend nor agentctl: a kill of them is nothing that a session must survive."""

_PROCESS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output"},
    "os": {"fork", "forkpty", "posix_spawn", "posix_spawnp"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}

Wanted = Callable[[ast.expr], bool]
"""Asked for every call, and for every `await` of one."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A call that is looked for: where it is made, and whether it has its two failpoints."""

    file: str
    function: str
    line: int
    covered: bool

    @property
    def name(self) -> str:
        """FILE:FUNCTION, by which an exception names it."""
        return f"{self.file}:{self.function}"


class Name(NamedTuple):
    """How something is called: `client.send` in `await self.client.send(1)`; the receiver may be ''."""

    receiver: str
    called: str

    @classmethod
    def of(cls, call: ast.expr) -> "Name":
        """The last two names of what is called; both '' for what is no call."""
        function = call.func if isinstance(call, ast.Call) else call
        return cls(_last(function.value) if isinstance(function, ast.Attribute) else "", _last(function))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def programs() -> list[Path]:
    """The files of the backend and of agentctl."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in PROGRAMS_OF_A_PERSON]


class Body(NamedTuple):
    """A function or method, with its calls and the lines of its failpoints."""

    name: str
    calls: Sequence[ast.expr]
    points: Sequence[int]


def places(wanted: Wanted, files: Iterable[Path]) -> Iterator[Place]:
    """Every call that is wanted, in the functions and methods of these files."""
    for path in files:
        file = str(path.relative_to(ROOT))
        for body in bodies_of(path):
            yield from (Place(file, body.name, line, covered) for line, covered in lines(wanted, body))


def lines(wanted: Wanted, body: Body) -> Iterator[tuple[int, bool]]:
    """The line of every call that is wanted, and whether it has its two failpoints."""
    chosen = sorted((call for call in body.calls if wanted(call)), key=lambda call: call.lineno)
    for number, call in enumerate(chosen):
        yield call.lineno, _points_around(chosen, number, body.points)


@functools.cache
def bodies_of(path: Path) -> Sequence[Body]:
    """The functions and methods of a file; one within another belongs to that."""
    return bodies(path.read_text())


def bodies(text: str) -> list[Body]:
    """The same of a text."""
    found = []
    for owner in [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef)]:
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for function in [node for node in owner.body if isinstance(node, Function)]:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call | ast.Await)]
            points = [call.lineno for call in calls if Name.of(call).called == "failpoint"]
            found.append(Body(f"{prefix}{function.name}", calls, points))
    return found


def _points_around(calls: Sequence[ast.expr], number: int, points: Sequence[int]) -> bool:
    """Tell whether call `number` has a point before and one behind it, and each of its neighbours too."""
    ends = [call.end_lineno or call.lineno for call in calls]
    before = [point for point in points if point < calls[number].lineno and (not number or point > ends[number - 1])]
    last = number == len(calls) - 1
    behind = [point for point in points if point > ends[number] and (last or point < calls[number + 1].lineno)]
    return len(before) >= (2 if number else 1) and len(behind) >= (1 if last else 2)


def starts_a_process(call: ast.expr) -> bool:
    """Tell whether a call starts a process."""
    receiver, called = Name.of(call)
    return isinstance(call, ast.Call) and called in _PROCESS.get(receiver, ())


def awaited(call: ast.expr, names: Collection[str]) -> bool:
    """Tell whether a call of one of these names is awaited."""
    return isinstance(call, ast.Await) and Name.of(call.value).called in names


def posts(path: Path, owner: str) -> set[str]:
    """The methods of a client that tell its server to do something: those that send a POST."""
    (client,) = [node for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "name", "") == owner]
    assert isinstance(client, ast.ClassDef)
    methods = [node for node in client.body if isinstance(node, ast.AsyncFunctionDef)]
    return {method.name for method in methods if _has_constant(method, "POST")}


def _has_constant(function: Function, value: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == value for node in ast.walk(function))


def bare(wanted: Wanted, passed_on: Mapping[str, Name]) -> list[Place]:
    """The calls without their failpoints, where the callers of `passed_on` functions stand for these.

    A function whose name begins with an underscore is called in its own file only.
    """
    missing = []
    waiting = [place for place in places(wanted, programs()) if not place.covered]
    done = set()
    while waiting:
        place = waiting.pop()
        name = passed_on.get(place.name)
        if name is None:
            missing.append(place)
        elif name not in done:
            done.add(name)
            files = [ROOT / place.file] if name.called.startswith("_") else programs()
            callers = list(places(lambda call, name=name: Name.of(call) == name, files))  # type: ignore[misc]  # a default binds it
            assert callers, f"nobody calls {name}"
            waiting += [caller for caller in callers if not caller.covered]
    return missing
