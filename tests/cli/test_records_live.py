"""Commands on what a broker leaves behind: its log, and transcripts."""

from __future__ import annotations

import json
import select
import subprocess
from typing import TYPE_CHECKING

import pytest

from stub_broker import TIMEOUT_S

if TYPE_CHECKING:
    from conftest import Shell


@pytest.fixture(scope="module")
def used(live: Shell) -> Shell:
    """A broker with an open session, and transcripts of closed ones."""
    for name in ("open", "old", "older"):
        live.run("eval", "-s", name, "x = 1")
    live.run("close", "old", "older")
    return live


def test_transcripts_are_listed_and_deleted_but_not_of_open_sessions(used: Shell) -> None:
    def listed(*args: str) -> set[str]:
        return {
            each["name"] for each in json.loads(used.run("transcripts", "ls", *args, "--json").stdout)["transcripts"]
        }

    assert listed() == {"open", "old", "older"}
    assert listed("old") == {"old"}
    assert "deleted 0 transcripts" in used.run("transcripts", "rm", "--all", "--older-than", "1d").stderr
    assert used.run("transcripts", "rm", "old").returncode == 0
    refused = used.run("transcripts", "rm", "open")
    assert (refused.returncode, "replctl close open" in refused.stderr) == (5, True)
    assert used.run("transcripts", "rm", "--all").returncode == 0
    assert listed() == {"open"}
    assert used.run("transcripts", "rm", "nobody").returncode == used.run("transcripts", "ls", "nobody").returncode == 4
    assert used.run("transcripts", "rm").returncode == 2


def test_logs_shows_the_log_of_the_broker_and_goes_on_with_it(used: Shell) -> None:
    log = used.state / "broker.log"
    with log.open("a") as file:
        file.write("first\nsecond \x1b[2Jline\n")
    assert used.run("logs", "-n", "2").stdout == log.read_text()[-len("first\nsecond \x1b[2Jline\n") :]
    process = used.start("logs", "-f", "-n", "1")
    assert read_line(process).startswith(b"second")
    log.rename(log.with_suffix(".log.1"))
    log.write_text("rotated\n")
    assert read_line(process) == b"rotated\n"


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of a process, which must come in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    assert ready
    return process.stdout.readline()


def test_without_a_log_logs_says_where_one_may_be(shell: Shell) -> None:
    result = shell.run("logs")
    assert (result.returncode, "journalctl" in result.stderr) == (3, True)
