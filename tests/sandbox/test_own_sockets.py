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
    """Whose it is, and where."""
    folder = Path(tempfile.mkdtemp(prefix="rpl-work-", dir="/tmp"))
    (folder / "tmp").mkdir()
    for path in (folder, folder / "tmp"):
        os.chown(path, uid_of(request.param), -1)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    yield request.param, folder
    shutil.rmtree(folder)


@pytest.fixture
def broker(workspace: tuple[str, Path]) -> Iterator[BrokerProcess]:
    who, folder = workspace
    settings = (f"broker.unix={folder}/lines.sock", f"broker.publish=ipc://{folder}/events.sock")
    broker = begin(who, *settings, more_endpoints=[f"ipc://{folder}/more.sock"])
    yield broker
    end(broker)


@pytest.mark.parametrize("asked", [{}, {"profile": "read-only"}], ids=["from the pool", "tighter"])
def test_a_session_reaches_none_of_the_brokers_own_sockets(
    broker: BrokerProcess, workspace: tuple[str, Path], asked: dict[str, str]
) -> None:
    _, folder = workspace
    for name in ("lines.sock", "events.sock", "more.sock", f"{broker.private_dir}/workers"):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(folder / name))
    with broker.wire() as wire:
        opened = wire.ask("new-session", name="s", cwd=str(folder), **asked)
        assert opened.status == ["done"], opened.messages
        assert broker.private_dir.is_relative_to(folder / "tmp")
        assert wire.run("import os; sorted(os.listdir('.'))", session="s").value is not None
        assert wire.run(CONNECT, session="s").out == ""
        assert wire.run(f"os.listdir('tmp/{broker.private_dir.name}')", session="s").value == "[]"
        assert wire.run("6*7", session="another").value == "42"
