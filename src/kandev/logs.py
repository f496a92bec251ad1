"""The backend's log: JSON lines in the home, readable lines on a terminal. No token, prompt or environment (SEC-3)."""

import contextlib
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog

FILE_BYTES = 5 << 20
FILES_KEPT = 3


@contextlib.contextmanager
def open_logs(directory: Path) -> Iterator[None]:
    """Send structlog's and the standard library's records to `backend.log`, and warnings to stderr too."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    file = _private_file(directory / "backend.log")
    file.setFormatter(_formatter(shared, structlog.processors.JSONRenderer()))
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.WARNING)
    console.setFormatter(_formatter(shared, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in (file, console):
        root.addHandler(handler)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        for handler in (file, console):
            root.removeHandler(handler)
            handler.close()


def _private_file(path: Path) -> logging.Handler:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return logging.handlers.RotatingFileHandler(
        path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8", errors="replace"
    )


def _formatter(shared: list[structlog.types.Processor], renderer: structlog.types.Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
