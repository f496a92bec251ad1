"""Builds agentctl.pyz, one file for containers and remote hosts: `python -m kandev.agentctl.build OUT`.

It holds this package and h11, and runs with any Python from 3.11 on: `python3 -I -S agentctl.pyz --help`. It holds the
demo agent too: `python3 -I -S agentctl.pyz demo-agent`. Each module is there compiled as well: a Python of the version
that built it starts a good third faster, and another one takes no notice.
"""

import importlib.util
import marshal
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import h11

import kandev.agentctl

__all__ = ["build", "build_in", "main"]

_START: Final = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("agentctl needs Python 3.11 or newer; this is " + sys.version.split()[0])

if sys.argv[1:2] == ["demo-agent"]:
    from kandev.demo.agent import main

    sys.exit(main(sys.argv[2:]))

from kandev.agentctl.__main__ import main

main(sys.argv[1:])
"""
_LEFT_OUT: Final = ("build.py",)
_UNCHECKED: Final = (0b01).to_bytes(4, "little")
"""In a compiled file: it is named by the hash of its source (PEP 552), and nobody compares the two."""
_SAME_EACH_TIME: Final = 2
"""The last version of marshal whose bytes do not depend on what else refers to an object."""
_ONE: Final = threading.Lock()


def build(out: str) -> None:
    """Write the archive to `out`. The same sources give the same bytes."""
    with open(out, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", _START.encode())
            _add(archive, "kandev/__init__.py", b"")
            _add(archive, "kandev/demo/__init__.py", b"")
            for name, path in _sources():
                with open(path, "rb") as source:
                    content = source.read()
                _add(archive, name, content)
                _add(archive, f"{name}c", _compiled(name, content))
    os.chmod(out, 0o755)  # noqa: S103  # a program that anybody may run


def build_in(directory: Path) -> Path:
    """Build into a directory under a name that tells the content, so that an archive in use is never changed.

    Sessions that start at once may call it from several threads. What a kill left half there is written over.
    """
    with _ONE:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = directory / "agentctl.new"
        try:
            build(str(draft))
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        digest = sha256(draft.read_bytes()).hexdigest()[:12]
        return draft.rename(directory / f"agentctl-{digest}.pyz")


def main(arguments: list[str]) -> None:
    """Build into the one path given."""
    if len(arguments) != 1:
        sys.exit("usage: python -m kandev.agentctl.build OUT")
    build(arguments[0])


def _sources() -> Iterator[tuple[str, str]]:
    """Yield (name in the archive, path) of both packages' modules, and of the demo agent."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(kandev.agentctl.__file__)))
    yield "kandev/demo/agent.py", os.path.join(package, "demo", "agent.py")
    for name, module in (("kandev/agentctl", kandev.agentctl), ("h11", h11)):
        directory = os.path.dirname(os.path.abspath(module.__file__ or ""))
        for file in sorted(os.listdir(directory)):
            if file.endswith(".py") and file not in _LEFT_OUT:
                yield f"{name}/{file}", os.path.join(directory, file)


def _compiled(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _SAME_EACH_TIME)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # with a fixed date
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


if __name__ == "__main__":
    main(sys.argv[1:])
