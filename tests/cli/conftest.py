"""Shared by the tests of the client and the command line: stub brokers, and commands as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for stub_broker: pytest imports tests by file, not by directory
from stub_broker import TIMEOUT_S, Script, StubBroker, command_environment


def _short() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)  # a broker that is ending takes its own files away


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: a socket's path may have 99 bytes."""
    yield from _short()


@pytest.fixture
def stub(short: Path) -> Iterator[Callable[[Script], StubBroker]]:
    """Start a stub broker with a script."""
    stubs: list[StubBroker] = []

    def start(script: Script) -> StubBroker:
        stubs.append(StubBroker(f"ipc://{short}/b{len(stubs)}.sock", script))
        return stubs[-1]

    yield start
    for each in stubs:
        each.stop()


class Shell:
    """Runs commands, each a process of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *args: str, input: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        ended = subprocess.run(
            [sys.executable, "-m", "replctl", *args],
            input=input,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=command_environment(self.state, **env),
            check=False,
        )
        return subprocess.CompletedProcess(args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start and go on; `python` are options for the interpreter."""
        python = options.pop("python", [])
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, *python, "-m", "replctl", *args], env=command_environment(self.state), **options
        )
        self._started.append(process)
        return process

    def reap(self) -> None:
        """End and reap what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def shell(short: Path) -> Iterator[Shell]:
    """Commands with a state directory of their own."""
    shell = Shell(short)
    yield shell
    shell.reap()


def _until_exit(shell: Shell) -> Iterator[Shell]:
    yield shell
    shell.run("shutdown")
    shell.reap()


@pytest.fixture(scope="module")
def live() -> Iterator[Shell]:
    """Commands that share one real broker, which the first of them starts; ended with the module's tests."""
    for directory in _short():
        yield from _until_exit(Shell(directory))


@pytest.fixture
def alone(short: Path) -> Iterator[Shell]:
    """Commands with a real broker of the test's own."""
    yield from _until_exit(Shell(short))
