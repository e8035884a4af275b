"""Who a client is: the kernel's word for local ones, a key or a token for others; and what each may do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import Broker, LineWire, Wire, free_tcp, own_address, wait_until
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


def keys(broker: Broker, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "replctl", "keys", *args], env=broker.environ, cwd=broker.folder, capture_output=True,
        timeout=20, check=True,
    )  # fmt: skip
    return done.stdout.decode().strip()


@pytest.mark.skipif(os.getuid() != 0 and not os.environ.get("CI"), reason="needs root, to be another user")
def test_another_user_of_the_machine_is_known_by_the_kernels_word(start: Callable[..., Broker]) -> None:
    broker = start("broker.tcp=127.0.0.1:0")
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
        told = subprocess.run(
            [sys.executable, "-c", ASK, port, *asked], capture_output=True, timeout=30, check=True
        )  # fmt: skip
        answers = [json.loads(line) for line in told.stdout.splitlines()]
        assert answers[0]["identity"] == f"uid:{OTHER_UID}"
        assert [answer["status"][-1] for answer in answers[1:]] == ["forbidden", "done", "forbidden", "done"]
        assert answers[2]["sessions"] == []
        assert wire.run("x").value == "1"


def test_a_client_with_a_key_comes_in_over_tcp_and_one_without_does_not(start: Callable[..., Broker]) -> None:
    broker = start(more_endpoints=[free_tcp()], keys=["ada"])
    tcp = broker.listening["tcp"]
    with Client(tcp, key=str(broker.folder / "ada.key"), start=False) as client:
        assert client.describe().identity == "ada"
        assert client.eval("6*7", session="hers").value == "42"
        with pytest.raises(ReplError) as ended:
            client.shutdown()
        assert ended.value.word == "forbidden"
    with broker.wire() as wire:
        assert [each["identity"] for each in wire.ask("ls-sessions")["sessions"]] == ["ada"]
    with Client(tcp, start=False) as stranger, pytest.raises(ReplError) as refused:
        stranger.ping()
    assert refused.value.word == "unauthorized"


def test_a_key_that_was_revoked_is_nobodys(start: Callable[..., Broker]) -> None:
    broker = start("limits.session-idle-timeout-ms=400", more_endpoints=[free_tcp()], keys=["ada"])
    with Client(broker.listening["tcp"], key=str(broker.folder / "ada.key"), start=False) as client:
        assert client.describe().identity == "ada"
        keys(broker, "revoke", "ada")

        def refused() -> bool:
            try:
                client.describe()
            except ReplError as error:
                return error.word == "unauthorized"
            return False

        wait_until(refused, "the revoked key is refused")
    with Client(broker.listening["tcp"], key=str(broker.folder / "ada.key"), start=False) as again:
        with pytest.raises(ReplError) as gone:
            again.ping()
        assert gone.value.word == "unauthorized"
    wait_until(lambda: ("tcp:127.0.0.1", None) in unauthorized(broker), "who was not let in is in the audit")


def unauthorized(broker: Broker) -> list[tuple[Any, Any]]:
    """Client and identity of what the audit says of those that were not let in."""
    found = [json.loads(line) for line in (broker.folder / "audit.ndjson").read_text().splitlines()]
    return [(each["client"], each["identity"]) for each in found if each["outcome"] == "unauthorized"]


def test_a_first_key_leaves_a_folder_that_a_broker_takes(tmp_path: Path) -> None:
    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-m", "replctl", "keys", "new", "ada"]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=20)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_beyond_loopback_a_broker_needs_keys(start: Callable[..., Broker]) -> None:
    broker = start()
    command = [sys.executable, "-m", "replctl", "serve", "--endpoint", free_tcp("0.0.0.0")]
    ended = subprocess.run(command, env=broker.environ, capture_output=True, timeout=20, check=False)
    assert ended.returncode != 0
    assert "replctl keys new" in ended.stderr.decode()


def test_a_line_client_whom_nobody_vouches_for_shows_a_token(start: Callable[..., Broker]) -> None:
    broker = start("broker.tcp=0.0.0.0:0")
    assert any("non-loopback" in warning for warning in broker.ready["warnings"])
    keys(broker, "token", "bob")
    (broker.folder / "keys/tokens/none").write_bytes(b"\xff")  # what is no digest is nobody's token
    token = (broker.folder / "bob.token").read_text().strip()
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
    assert token not in broker.log_text()
    assert token not in (broker.folder / "audit.ndjson").read_text()
    assert token not in (broker.folder / "keys/tokens/bob").read_text()


def test_ten_wrong_tokens_in_a_row_end_the_connection(start: Callable[..., Broker]) -> None:
    broker = start("broker.tcp=0.0.0.0:0")
    line = LineWire(f"lines+tcp://{own_address()}:{broker.listening['tcp'].rpartition(':')[2]}")
    for _ in range(10):
        assert line.ask("hello", token="guess").status == ["done", "error", "unauthorized"]
    assert line.ended()
    line.close()
    with broker.wire() as wire:
        assert wire.run("1").value == "1"


def test_sharing_is_said_and_seen(wire: Wire) -> None:
    wire.run("1")
    assert wire.ask("share", session="s", who="uid:7", level="read")["shares"] == {"uid:7": "read"}
    assert wire.ask("info", session="s")["info"]["shares"] == {"uid:7": "read"}
    assert wire.ask("hand-over", session="s", who="uid:7")["identity"] == "uid:7"
    assert wire.run("2").value == "2"  # the broker's own user is an admin


def test_key_files_are_for_their_owner_alone(start: Callable[..., Broker]) -> None:
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
    assert (refused.value.word, refused.value.err) == ("unauthorized", f"{path}: others may read it; chmod 600 it")
