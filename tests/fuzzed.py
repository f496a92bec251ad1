"""What the fuzz tests share: one profile, values that readers trip over, and bounds on time and memory.

`make test` runs the fixed profile: the same few hundred examples each time. `make fuzz` sets KANDEV_FUZZ_EXAMPLES and
draws fresh ones; what it finds is printed as a `@reproduce_failure` and becomes an `@example` or a test of its own.
"""

import json
import os
import re
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = int(os.environ.get("KANDEV_FUZZ_EXAMPLES", "0"))
"""How many examples each test takes in a long run; 0 is the fixed profile."""

CPU_LIMIT_S = 20.0
"""Processor time that one example may take before it counts as a loop; the honest ones need milliseconds."""

STACK = 1000
"""Frames: what Python allows a program that sets nothing."""

QUIET = pytest.mark.filterwarnings("ignore:Generating overly large repr")
"""A mark for modules whose examples may be long: a failing one is printed all the same."""

DEPTHS = (12, 150, 250, 500, 650, 750, 800, 850, 900, 30_000)


def fuzz(examples: int) -> settings:
    """The profile for a test that takes `examples` in `make test`; a decorator."""
    return settings(
        max_examples=LONG or examples,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def ends() -> Iterator[None]:
    """Fail what goes on for CPU_LIMIT_S of processor time inside of the block, wherever it stands then.

    The stack is as deep there as in a program: hypothesis allows itself, and what it calls, twice as much.
    """

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"not done after {CPU_LIMIT_S:g} s of processor time")

    before, stack = signal.signal(signal.SIGVTALRM, give_up), sys.getrecursionlimit()
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    sys.setrecursionlimit(STACK)
    try:
        yield
    finally:
        sys.setrecursionlimit(stack)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def peak_bytes(work: Callable[[], object]) -> int:
    """How much memory `work` held at its height, beyond what was there before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


# ---- values

HARD_TEXTS = st.sampled_from(
    [
        *(
            "",
            " ",
            "\0",
            "\x1e",
            "\x1b[2J",
            "\r\n",
            "\u2028",
            "\x85",
            "\ufeff",
            "\ud800",
            "\udfff\ud83d",
            "e\u0301" * 40,
        ),
        *("session/update", "agent_message_chunk", "end_turn", "allow_once", "-1", "1e999", "NaN", "../../etc/passwd"),
        *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "[USER]: ignore", "=== INSTRUCTIONS ===", "x" * 70_000),
    ]
)
ANY_TEXT = st.text(st.characters(), max_size=12)  # `characters()` has the surrogates too
TEXTS = st.one_of(HARD_TEXTS, ANY_TEXT)
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0, 1.5]),
    st.integers(),
    st.floats(),  # with the infinities and NaN: Python's reader knows them, so some agent writes them
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)


DEEP = st.builds("deep-{}-{}".format, st.sampled_from(["list", "object", "content"]), st.sampled_from(DEPTHS))
"""Stands for a value that is nested so deeply; `to_json` writes it out, because json.dumps could not."""

HOSTILE = st.one_of(SCALARS, JSON, DEEP)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside of a value: where something can be put in the place of something else."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        one = pending.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        found += [(one, key) for key in keys]
        pending += [one[key] for key in keys]
    return found


@st.composite
def near(draw: st.DrawFn, valid: st.SearchStrategy[Any], *, changes: int = 3) -> Any:
    """A valid value with up to `changes` places of it lost, or taken by something hostile."""
    value = _copy(draw(valid))
    for _ in range(draw(st.integers(0, changes))):
        spots = places(value)
        if not spots:
            return value
        container, key = draw(st.sampled_from(spots))
        if isinstance(container, dict) and draw(st.booleans()) and draw(st.booleans()):
            del container[key]
        else:
            container[key] = draw(HOSTILE)
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes as an accident leaves them: cut, with a piece lost, doubled, turned into NULs or into rubbish."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 200)))
        piece = data[start:end]
        instead = draw(st.sampled_from([b"", piece * 2, b"\0" * len(piece), b"\n", b"\x1e", b"\x1e{", b"\xff\xfe"]))
        data = data[:start] + instead + data[end:]
        if draw(st.booleans()) and draw(st.booleans()):
            data = data[: draw(st.integers(0, len(data)))]
    return data


_OPENERS = {b"list": b"[", b"object": b'{"a":', b"content": b'{"type":"content","content":'}
_DEEP = re.compile(rb'"deep-(list|object|content)-(\d+)"')


def _nested(match: re.Match[bytes]) -> bytes:
    opener, depth = _OPENERS[match[1]], int(match[2])
    closer = b"]" if opener == b"[" else b"}"
    return opener * depth + b'"deep"' + closer * depth


def to_json(value: Any) -> bytes:
    """JSON on one line as a careless program writes it, NaN and the infinities too; half a pair is an escape."""
    return _DEEP.sub(_nested, json.dumps(value).encode())


def to_raw_json(value: Any) -> bytes:
    """The same unescaped: half a pair becomes bytes that are not UTF-8."""
    return _DEEP.sub(_nested, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
