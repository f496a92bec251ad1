"""An image made of this machine's own Python, without a registry: `docker import` of a tar file.

It holds the interpreter with its standard library, every shared library that these load, git, and a few programs of a
shell. About 80 MB.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PROGRAMS = ("sh", "cat", "sleep", "ls", "env", "kill", "git")
LOADED_LATER = (
    *("libgcc_s.so.1", "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2", "libpthread.so.0", "libutil.so.1"),
)
"""Libraries that ldd does not show, because they are opened when they are first needed."""
LEFT_OUT = {"test", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "lib2to3"}
ELF = b"\x7fELF"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def write_image(path: Path, trees: Sequence[Path] = ()) -> None:
    """Writes the tar file; also the libraries of programs in the directories `trees`, which may be mounted."""
    interpreter = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    with tarfile.open(path, "w") as tar:
        _merged_usr(tar)
        # The interpreter may be below /root, and agents run as other users, too.
        for directory, mode in (("tmp", 0o1777), ("root", 0o711), ("etc", 0o755), ("work", 0o755)):
            _entry(tar, directory, tarfile.DIRTYPE, mode=mode)
        _entry(tar, "etc/passwd", tarfile.REGTYPE, content=PASSWD.encode())
        _entry(tar, "usr/bin/python3", tarfile.SYMTYPE, target=str(interpreter))
        programs = [Path(os.path.realpath(found)) for name in PROGRAMS if (found := shutil.which(name))]
        names = [name for name in PROGRAMS if shutil.which(name)]
        binaries = [interpreter, *programs, *library.rglob("*.so"), *_binaries_in(trees)]
        for name, program in zip(names, programs, strict=True):
            tar.add(program, f"usr/bin/{name}")
        done: set[str] = set()
        libraries = [path for path in _libraries(binaries) if not any(path.is_relative_to(tree) for tree in trees)]
        _add_files(tar, [interpreter, *_standard_library(library), *libraries], done)


def _merged_usr(tar: tarfile.TarFile) -> None:
    for name in ("bin", "lib", "lib64", "sbin"):
        _entry(tar, f"usr/{name}", tarfile.DIRTYPE, mode=0o755)
        _entry(tar, name, tarfile.SYMTYPE, target=f"usr/{name}")


def _entry(
    tar: tarfile.TarFile, name: str, kind: bytes, *, mode: int = 0o644, content: bytes = b"", target: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, target, len(content)
    tar.addfile(info, io.BytesIO(content))


def _standard_library(library: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(library):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        yield from (Path(directory, name) for name in files)


def _binaries_in(trees: Iterable[Path]) -> Iterator[Path]:
    for path in (path for tree in trees for path in tree.rglob("*")):
        if path.is_file() and (os.access(path, os.X_OK) or path.suffix == ".node"):
            with path.open("rb") as file:
                if file.read(len(ELF)) == ELF:
                    yield path


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """The shared libraries that binaries load, at the paths where they are looked for."""
    found: set[Path] = set()
    for binary in binaries:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        found |= {Path(path) for path in re.findall(r"(/\S+\.so\S*) \(0x", listed)}
    beside = {path.parent for path in found}
    found |= {place / name for place in beside for name in LOADED_LATER if (place / name).exists()}
    return found


def _add_files(tar: tarfile.TarFile, paths: Iterable[Path], done: set[str]) -> None:
    """Adds files under their own paths, seen through links, so that each is there whatever the links are."""
    for path in paths:
        name = _under_usr(str(path)).lstrip("/")
        if name not in done:
            done.add(name)
            info = tar.gettarinfo(os.path.realpath(path), name)
            info.uid = info.gid = 0
            info.type, info.linkname = tarfile.REGTYPE, ""
            info.size = os.path.getsize(os.path.realpath(path))
            with open(os.path.realpath(path), "rb") as file:
                tar.addfile(info, file)


def _under_usr(path: str) -> str:
    return f"/usr{path}" if path.startswith(("/lib/", "/lib64/", "/bin/", "/sbin/")) else path
