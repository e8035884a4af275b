"""Identities of clients: from the kernel for local ones, by key or token for others; and their permissions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from kit import BrokerProcess, LineWire, Wire, free_tcp, identities_as_root, own_address, wait_until
from replbroker.transports.client_router import ClientRouter
from replbroker.transports.zap import ZapAuthenticator
from replctl import Client, ReplError

OTHER_UID = 65534
ASK = """
import encodings.idna, json, os, socket, sys  # what is needed, while it can be read
os.setgid(65534); os.setuid(65534)
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
file = sock.makefile("rb")
for line in sys.argv[2:]:
    sock.sendall(line.encode() + b"\\n")
    while True:
        answer = json.loads(file.readline())
        if "done" in answer.get("status", []):
            break
    print(json.dumps(answer))
"""
SEND = """
import os, sys, zmq
context = zmq.Context()
socket = context.socket(zmq.DEALER)
os.setuid(int(sys.argv[1]))
sys.stdin.readline()
socket.connect(sys.argv[2])
socket.send(sys.argv[1].encode())
sys.stdin.readline()
context.destroy()
"""


def keys(broker: BrokerProcess, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "replctl", "keys", *args],
        env=broker.environ,
        cwd=broker.directory,
        capture_output=True,
        timeout=20,
        check=True,
    )
    return done.stdout.decode().strip()


class ConnectionLog:
    """Events that a transport reports about its connections."""

    def __init__(self) -> None:
        self.who: dict[bytes, str] = {}
        self.groups: dict[bytes, tuple[int, ...]] = {}
        self.open: set[bytes] = set()

    def on_connect(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> None:
        self.who[peer], self.groups[peer] = identity, groups
        self.open.add(peer)

    def on_message_after_close(self, peer: bytes, identity: str) -> None:
        self.who[peer] = identity

    def on_disconnect(self, peer: bytes) -> None:
        self.open.discard(peer)


class SendingProcess:
    """Another process: it waits, connects and sends its user's number, waits, and is gone."""

    def __init__(self, stack: ExitStack, uid: int, url: str) -> None:
        self._process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", SEND, str(uid), url], stdin=subprocess.PIPE, text=True, bufsize=1)
        )

    def resume(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")


def rows(audit: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []


@pytest.mark.needs_root("to be another user")
def test_another_user_of_the_machine_is_known_by_the_kernels_word(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.tcp=127.0.0.1:0", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 1")
        assert wire.ask("describe")["identity"] == f"uid:{os.getuid()}"
        asked = [
            json.dumps({"id": "1", "op": "describe"}),
            json.dumps({"id": "2", "op": "eval", "session": "s", "code": "x"}),
            json.dumps({"id": "3", "op": "ls-sessions"}),
            json.dumps({"id": "4", "op": "shutdown"}),
            json.dumps({"id": "5", "op": "eval", "code": "6*7"}),
        ]
        port = broker.listening["tcp"].rpartition(":")[2]
        result = subprocess.run([sys.executable, "-c", ASK, port, *asked], capture_output=True, timeout=30, check=True)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        assert answers[0]["identity"] == f"uid:{OTHER_UID}"
        assert [answer["status"][-1] for answer in answers[1:]] == ["session-not-found", "done", "forbidden", "done"]
        assert answers[2]["sessions"] == []
        assert wire.run("x").value == "1"


def test_a_client_with_a_key_comes_in_over_tcp_and_one_without_does_not(start: Callable[..., BrokerProcess]) -> None:
    broker = start(more_endpoints=[free_tcp()], keys=["ada"])
    tcp = broker.listening["tcp"]
    with Client(tcp, key=str(broker.directory / "ada.key"), start=False) as client:
        assert client.describe().identity == "ada"
        assert client.eval("6*7", session="hers").value == "42"
        with pytest.raises(ReplError) as ended:
            client.shutdown()
        assert ended.value.code == "forbidden"
    with broker.wire() as wire:
        assert [each["owner"] for each in wire.ask("ls-sessions")["sessions"]] == ["ada"]
    with Client(tcp, start=False) as stranger, pytest.raises(ReplError) as refused:
        stranger.ping()
    assert refused.value.code == "unauthorized"


def test_a_key_that_was_revoked_is_nobodys(start: Callable[..., BrokerProcess]) -> None:
    broker = start(more_endpoints=[free_tcp()], keys=["ada"])
    with Client(broker.listening["tcp"], key=str(broker.directory / "ada.key"), start=False) as client:
        assert client.describe().identity == "ada"
        keys(broker, "revoke", "ada")
        with pytest.raises(ReplError) as refused:
            client.describe()
        assert refused.value.code == "unauthorized"
    with Client(broker.listening["tcp"], key=str(broker.directory / "ada.key"), start=False) as again:
        with pytest.raises(ReplError) as revoked:
            again.ping()
        assert revoked.value.code == "unauthorized"
    wait_until(lambda: ("tcp:127.0.0.1", None) in unauthorized(broker), "who was not let in is in the audit")


def test_a_token_that_was_revoked_ends_what_waits_on_its_connection_at_once(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start("broker.tcp=0.0.0.0:0", config=identities_as_root("bob"))
    keys(broker, "token", "bob")
    token = (broker.directory / "bob.token").read_text().strip()
    line = LineWire(f"lines+tcp://{own_address()}:{broker.listening['tcp'].rpartition(':')[2]}")
    with broker.wire() as wire:
        try:
            assert line.ask("hello", token=token)["identity"] == "bob"
            listening = line.send("subscribe")
            line.until(listening, "subscribed")
            waiting = line.send("eval", code="input()", session="his", if_missing="create")
            line.until(waiting, "need-input")
            keys(broker, "revoke", "bob")
            for each in (listening, waiting):
                assert line.answer(each, timeout_s=5).status == ["done", "error", "unauthorized"]
            keys(broker, "token", "bob", "--out", str(broker.directory / "second"))  # the name is another's now
            assert line.ask("ls-sessions").status == ["done", "error", "unauthorized"]
        finally:
            line.close()
        (session,) = wire.ask("ls-sessions")["sessions"]
        assert (session["owner"], session["running"]) == ("bob", 1)  # what it asked for is done all the same


def unauthorized(broker: BrokerProcess) -> list[tuple[Any, Any]]:
    """Client and identity of what the audit says of those that were not let in."""
    found = [json.loads(line) for line in (broker.directory / "audit.ndjson").read_text().splitlines()]
    return [(each["client"], each["identity"]) for each in found if each["outcome"] == "unauthorized"]


def test_a_first_key_leaves_a_directory_that_a_broker_takes(tmp_path: Path) -> None:
    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-m", "replctl", "keys", "new", "ada"]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=20)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["new", "token"])
def test_a_clients_file_and_its_place_with_the_broker_are_made_both_or_neither(tmp_path: Path, kind: str) -> None:
    def keys_command(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "replctl", "keys", *args]
        environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path / "state")}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=False)

    nowhere = keys_command(kind, "ada", "--out", str(tmp_path / "no/ada"))
    assert (nowhere.returncode, "cannot write" in nowhere.stderr, "Traceback" in nowhere.stderr) == (1, True, False)
    assert "ada" not in keys_command("list").stdout
    assert keys_command(kind, "ada", "--out", str(tmp_path / "ada")).returncode == 0
    again = keys_command(kind, "ada", "--out", str(tmp_path / "second"))
    assert (again.returncode, "revoke it first" in again.stderr) == (1, True)
    assert not (tmp_path / "second").exists()
    there = keys_command(kind, "bob", "--out", str(tmp_path / "ada"))
    assert (there.returncode, "already exists" in there.stderr) == (1, True)
    assert keys_command("list").stdout.count("ada") == 1


def test_beyond_loopback_a_broker_needs_keys(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    command = [sys.executable, "-m", "replctl", "serve", "--endpoint", free_tcp("0.0.0.0")]
    ended = subprocess.run(command, env=broker.environ, capture_output=True, timeout=20, check=False)
    assert ended.returncode != 0
    assert "replctl keys new" in ended.stderr.decode()


def test_a_line_client_whom_nobody_vouches_for_shows_a_token(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.tcp=0.0.0.0:0", config=identities_as_root("bob"))
    assert any("non-loopback" in warning for warning in broker.ready["warnings"])
    keys(broker, "token", "bob")
    (broker.directory / "keys/tokens/none").write_bytes(b"\xff")  # what is no digest is nobody's token
    token = (broker.directory / "bob.token").read_text().strip()
    address = own_address()
    port = broker.listening["tcp"].rpartition(":")[2]
    line = LineWire(f"lines+tcp://{address}:{port}")
    try:
        assert line.ask("ping").status == ["done", "pong"]
        assert line.ask("eval", code="1").status == ["done", "error", "unauthorized"]
        assert line.ask("hello", token=token + "x").status == ["done", "error", "unauthorized"]
        assert line.ask("hello", token=token)["identity"] == "bob"
        assert line.run("6*7", session="his").value == "42"
    finally:
        line.close()
    assert broker.stop() == 0  # the audit is written behind the answers
    audit = (broker.directory / "audit.ndjson").read_text()
    assert '"unauthorized"' in audit
    assert token not in audit + broker.log_text()
    assert token not in (broker.directory / "keys/tokens/bob").read_text()


def test_ten_wrong_tokens_in_a_row_end_the_connection(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.tcp=0.0.0.0:0")
    line = LineWire(f"lines+tcp://{own_address()}:{broker.listening['tcp'].rpartition(':')[2]}")
    for _ in range(10):
        assert line.ask("hello", token="guess").status == ["done", "error", "unauthorized"]
    assert line.has_ended()
    line.close()
    with broker.wire() as wire:
        assert wire.run("1").value == "1"


def test_sharing_is_said_and_seen(wire: Wire) -> None:
    wire.run("1")
    assert wire.ask("share", session="s", who="uid:7", level="read")["shares"] == {"uid:7": "read"}
    assert wire.ask("info", session="s")["info"]["shares"] == {"uid:7": "read"}
    assert wire.ask("transfer", session="s", who="uid:7")["owner"] == "uid:7"
    assert wire.run("2", "uid:7/s").value == "2"  # the broker's own user is an admin


def test_key_files_are_for_their_owner_alone(start: Callable[..., BrokerProcess]) -> None:
    broker = start(more_endpoints=[free_tcp()], keys=["ada"])
    path = keys(broker, "new", "eve")
    assert os.stat(path).st_mode & 0o777 == 0o600
    secret = next(line for line in Path(path).read_text().splitlines() if line.startswith("secret"))
    listed = keys(broker, "list")
    assert "eve" in listed
    assert secret.split("'")[1] not in listed
    os.chmod(path, 0o644)
    with pytest.raises(ReplError) as refused:
        Client(broker.listening["tcp"], key=path, start=False)
    assert (refused.value.code, refused.value.message) == (
        "unauthorized",
        f"{path}: readable by other users; run chmod 600",
    )


def test_who_has_hung_up_on_loopback_is_nobody_and_not_root(start: Callable[..., BrokerProcess]) -> None:
    """The kernel's table gives a closed socket to user 0, whoever had it; the broker is stopped to come second."""
    broker = start("broker.tcp=127.0.0.1:0")
    broker.process.send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{broker.pid}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the broker stands still")
    line = LineWire(broker.listening["tcp"])
    line.send("shutdown", id="gone")
    line.close()
    broker.process.send_signal(signal.SIGCONT)
    audit = broker.directory / "audit.ndjson"
    result = wait_until(lambda: [row for row in rows(audit) if row["id"] == "gone"], "the request is in the audit")
    assert [row["outcome"] for row in result] == ["unauthorized"]
    with broker.wire() as wire:
        assert wire.run("1").value == "1"


@pytest.mark.needs_root("to be another user")
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_request_that_waits_is_not_taken_for_that_of_who_came_to_its_connections_descriptor(transport: str) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        os.chmod(directory, 0o755)
        path = f"{directory}/b.sock"
        url = f"ipc://{path}" if transport == "ipc" else free_tcp()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, 0)
        seen = ConnectionLog()
        clients = ClientRouter(context, seen, 1000, capacity=10)  # type: ignore[arg-type]
        stack.callback(clients.close, 0)
        zap = ZapAuthenticator(context, lambda _: None, lambda _: None, clients.next_handshake_number)
        clients.socket.bind(url)
        if transport == "ipc":
            os.chmod(path, 0o666)
        other, own = (SendingProcess(stack, uid, url) for uid in (OTHER_UID, os.getuid()))

        def waits(connected: int) -> bool:
            zap.answer_requests()
            clients.read_monitor()
            return len(seen.open) == connected and bool(clients.socket.poll(0))

        other.resume()
        wait_until(lambda: waits(1), "its request waits")
        other.resume()
        wait_until(lambda: waits(0), "it is gone, and its request still waits")
        own.resume()
        wait_until(lambda: waits(1), "the next one is there")
        results: dict[str, str] = {}
        while len(results) < 2:
            wait_until(lambda: waits(1), "both requests are there")
            peer, body = clients.receive()
            results[body.decode()] = seen.who[peer]
        own.resume()
    departed = f"uid:{OTHER_UID}" if transport == "ipc" else "anyone"  # on loopback nobody is left to ask for
    assert results == {str(OTHER_UID): departed, str(os.getuid()): f"uid:{os.getuid()}"}
