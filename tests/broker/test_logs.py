"""The broker's log: one escaped entry a record, on the broker's own logger alone."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys

import pytest

from replbroker.logs import ROOT_LOGGER, log_to_stderr

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"


def test_an_entry_has_a_time_stamp_and_escaped_indented_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with log_to_stderr():
        logging.getLogger("replbroker.app").info("first \x1b[2J %s\n", "line\nsecond\n")
    assert re.fullmatch(STAMP + r" first \\x1b\[2J line\n  second\n", stream.getvalue())


def test_a_stream_that_cannot_be_written_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with log_to_stderr():
        logging.getLogger("replbroker.app").warning("lost")


def test_the_logger_is_as_before_when_the_broker_has_ended() -> None:
    logger = logging.getLogger(ROOT_LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    with log_to_stderr():
        assert not logger.propagate
    assert (logger.handlers, logger.level, logger.propagate) == before


def test_importing_the_broker_installs_no_handler() -> None:
    code = "import logging, replbroker.app; print(logging.root.handlers, logging.getLogger('replbroker').handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[] []\n"
