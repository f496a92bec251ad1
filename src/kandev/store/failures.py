"""What a failing disk or a locked database is called: one place that turns their errors into ours (HIST-12)."""

import errno
import os
import sqlite3
from pathlib import Path

from kandev.errors import Internal, StorageFull, StorageLocked, Unavailable

STORAGE_FAILED = "storage_failed"

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ROOM_NEEDED = 1 << 20
"""Bytes. With less than this left, an I/O error of SQLite is taken for a full disk."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNUSABLE = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def database_failure(error: Exception, path: Path) -> Exception:
    """Return what to raise for `error`: ours if the storage is at fault, else `error` itself."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error) or code is None:
        return error
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_full(path)):
        return StorageFull(f"No room for {path}: make room on its disk. What was stored before is intact.")
    if primary in _BUSY:
        return StorageLocked(f"{path} is locked by another program; nothing was stored. Try again when it is done.")
    if primary in _UNUSABLE:
        return Unavailable(f"{path} cannot be used: {error}.", reason=STORAGE_FAILED)
    if primary in _DAMAGED:
        return Internal(f"{path} is damaged: {error}. Put a copy from backups/ in its place.", reason="damaged")
    return error


def file_failure(error: OSError, path: Path) -> Unavailable | StorageFull:
    """Return what to raise when `path` could not be written or read."""
    if error.errno in _NO_ROOM:
        return StorageFull(f"No room for {path}: make room on its disk. What was stored before is intact.")
    return Unavailable(f"{path} cannot be used: {error.strerror}.", reason=STORAGE_FAILED)


def _is_full(path: Path) -> bool:
    # A write-ahead index that cannot grow is reported as an I/O error, and so is a sync that finds no room.
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _ROOM_NEEDED
