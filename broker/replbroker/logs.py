"""The broker's log: Python's `logging`, written to stderr as one escaped entry a record."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from replwire.terminal import escape_lines

ROOT_LOGGER = "replbroker"


class LogFormatter(logging.Formatter):
    """Time stamp and message; further lines are indented, so that quoted text cannot pass for an entry of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry, with control characters escaped and without a final newline."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        return f"{stamp} {escape_lines(super().format(record).rstrip(chr(10)), '  ')}"


class _LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that drops an entry it cannot write: a full disk must not stop the broker."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Send the log of every module of this package to stderr for the duration of the context."""
    logger, handler = logging.getLogger(ROOT_LOGGER), _LogHandler(sys.stderr)
    before = logger.level, logger.propagate
    handler.setFormatter(LogFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        handler.close()
