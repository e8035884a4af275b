"""Hostile clients at a broker's sockets, and attacks on another session. Others never wait a second."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from attack_targets import USERS, AttackSite, begin, end, uid_of
from kit import Wire, wait_until
from replctl import Client, ReplError
from replworker.sandbox.report import SandboxReport

GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 0]) + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


@pytest.fixture(scope="module", params=USERS)
def place(request: pytest.FixtureRequest, report: SandboxReport) -> Iterator[AttackSite]:
    """A broker, and somebody whose session must not notice what is done to it."""
    assert report.ok
    directory = Path(tempfile.mkdtemp(prefix="rpl-guest-", dir="/tmp"))
    (directory / "workspace").mkdir()
    for path in (directory, directory / "workspace"):
        os.chown(path, uid_of(request.param), uid_of(request.param))
    broker = begin(request.param)
    try:
        place = AttackSite(broker, directory, {}, sandboxed=True)
        yield place
        place.close()
    finally:
        end(broker)
        shutil.rmtree(directory)


@pytest.fixture
def wire(place: AttackSite) -> Iterator[Wire]:
    with place.broker.wire() as wire:
        yield wire
        for name in ("evil", "copy"):
            wire.ask("close", session=name)
    place.assert_others_respond()


def raw(place: AttackSite) -> socket.socket:
    """A bare connection to where clients come."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(place.broker.endpoint.removeprefix("ipc://"))  # waits while the queue of those to be let in is full
    end.settimeout(10)
    return end


def test_connections_that_never_say_a_word_cost_nobody_else_anything(place: AttackSite) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(raw(place))
        place.assert_others_respond()
    place.assert_others_respond()


def test_a_frame_that_claims_a_terabyte_ends_its_connection(place: AttackSite) -> None:
    with raw(place) as end:
        end.sendall(GREETING)
        got = b""
        while len(got) < 64:
            got += end.recv(64 - len(got))
        end.sendall(READY)
        end.sendall(b"\x02" + struct.pack(">Q", 1 << 40) + b"x")
        place.assert_others_respond()
        wait_until(lambda: closed(end), "the connection is closed")
    place.assert_others_respond()


def closed(end: socket.socket) -> bool:
    try:
        return end.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_another_clients_routing_id_brings_none_of_its_answers(place: AttackSite) -> None:
    context = zmq.Context()
    first, second = (context.socket(zmq.DEALER) for _ in range(2))
    try:
        for each in (first, second):
            each.setsockopt(zmq.LINGER, 0)
            each.setsockopt(zmq.ROUTING_ID, b"the same")
        first.connect(place.broker.endpoint)
        first.send(b'{"id":"a","op":"ping"}')
        assert first.poll(5000)
        assert b"unauthorized" in first.recv()
        second.connect(place.broker.endpoint)
        second.send(b'{"id":"b","op":"ping"}')
        place.assert_others_respond()
        assert not second.poll(100)
    finally:
        context.destroy(linger=0)
    place.assert_others_respond()


EVIL = """
import os
class Evil:
    def __reduce__(self):
        return (exec, ("import os; open('/tmp/ran', 'w').write(str(os.getpid())); open(%r, 'w').close()",))
evil = Evil()
"""


def test_what_a_clone_brings_along_runs_in_its_own_sandbox_and_nowhere_else(wire: Wire, place: AttackSite) -> None:
    """Unpickling runs code: the one that comes in a snapshot must find itself where the clone's own code would."""
    trace = Path(tempfile.gettempdir(), f"rpl-evil-{os.getpid()}-{place.broker.pid}")
    wire.run(EVIL % str(trace), session="evil")
    cloned = wire.ask("clone", session="evil", name="copy")
    assert cloned.status == ["done"]
    assert wire.run("import os; int(open('/tmp/ran').read()) == os.getpid()", session="copy").value == "True"
    assert wire.run(f"os.path.exists({str(trace)!r})", session="copy").value == "True"  # in a /tmp of its own
    assert wire.run("os.path.exists('/tmp/ran')", session="evil").value == "False"
    assert not trace.exists()


def test_what_a_saved_session_brings_along_runs_in_the_sandbox_of_its_session(
    wire: Wire, place: AttackSite, tmp_path: Path
) -> None:
    """A file is code, of whoever wrote it: it runs where the new session's own code would, and takes no more memory."""
    trace = Path(tempfile.gettempdir(), f"rpl-evil-{os.getpid()}-{place.broker.pid}")
    wire.run(EVIL % str(trace), session="evil")
    file = tmp_path / "evil.session"
    with Client(place.broker.endpoint) as client:
        client.save("evil", file)
        client.new("victim", from_file=file)
        assert client.eval("import os; int(open('/tmp/ran').read()) == os.getpid()", "victim").value == "True"
        assert not trace.exists()
        client.eval("class Bomb:\n    def __reduce__(self): return (bytearray, (1 << 40,))\nbomb = [Bomb()]", "evil")
        client.save("evil", file)
        with pytest.raises(ReplError, match="MemoryError"):
            client.new("bombed", from_file=file)
    place.assert_others_respond()


def test_a_clone_is_held_as_tightly_as_its_source(wire: Wire, place: AttackSite) -> None:
    wire.ask("new-session", name="evil", cwd=str(place.workspace), profile="read-only", memory_bytes=100 << 20)
    wire.run("x = 1", session="evil")
    assert wire.ask("clone", session="evil", name="copy").status == ["done"]
    assert wire.run("open('made', 'w')", session="copy")["ex"]["type"] == "OSError"
    assert wire.run("bytearray(200 << 20)", session="copy")["ex"]["type"] == "MemoryError"
    tighter = [wire.ask("info", session=name)["info"]["sandbox"]["tighter"] for name in ("evil", "copy")]
    assert tighter[0] == tighter[1] == {"profile": "read-only", "memory-bytes": 100 << 20}


def test_the_environment_cannot_switch_the_sandbox_off(place: AttackSite) -> None:
    env = {**place.broker.environ, "REPLCTL_SANDBOX_ALLOW_UNSANDBOXED": "true"}
    ran = subprocess.run(
        [sys.executable, "-m", "replctl", "serve", "--endpoint", f"ipc://{place.broker.directory}/run/other.sock"],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ran.returncode == 2
    assert "can be set only in the config file" in ran.stderr
