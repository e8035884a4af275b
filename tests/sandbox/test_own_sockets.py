"""A workspace that holds the broker's own sockets: its endpoints, and with TMPDIR there those of its workers too."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import USERS, begin, end, uid_of
from kit import BrokerProcess

CONNECT = """
import os, socket
found = [f"{top}/{name}" for top, _, names in os.walk(".") for name in names]
for path in found:
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except OSError:
            continue
    print("OUT", path)
"""


@pytest.fixture(params=USERS)
def workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """Return the workspace of the user, and its owner."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-work-", dir="/tmp"))
    (directory / "tmp").mkdir()
    for path in (directory, directory / "tmp"):
        os.chown(path, uid_of(request.param), -1)
    monkeypatch.setenv("TMPDIR", str(directory / "tmp"))
    yield request.param, directory
    shutil.rmtree(directory)


@pytest.fixture
def broker(workspace: tuple[str, Path]) -> Iterator[BrokerProcess]:
    who, directory = workspace
    settings = (f"broker.unix={directory}/lines.sock", f"broker.publish=ipc://{directory}/events.sock")
    broker = begin(who, *settings, more_endpoints=[f"ipc://{directory}/more.sock"])
    yield broker
    end(broker)


@pytest.mark.parametrize("asked", [{}, {"profile": "read-only"}], ids=["from the pool", "tighter"])
def test_a_session_reaches_none_of_the_brokers_own_sockets(
    broker: BrokerProcess, workspace: tuple[str, Path], asked: dict[str, str]
) -> None:
    _, directory = workspace
    for name in ("lines.sock", "events.sock", "more.sock", f"{broker.private_dir}/workers"):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(directory / name))
    with broker.wire() as wire:
        opened = wire.ask("new-session", name="s", cwd=str(directory), **asked)
        assert opened.status == ["done"], opened.messages
        assert broker.private_dir.is_relative_to(directory / "tmp")
        assert wire.run("import os; sorted(os.listdir('.'))", session="s").value is not None
        assert wire.run(CONNECT, session="s").out == ""
        assert wire.run(f"os.listdir('tmp/{broker.private_dir.name}')", session="s").value == "[]"
        assert wire.run("6*7", session="another").value == "42"
