"""Sessions that are saved in files and opened from them: over the real wire, by both clients, whole and damaged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import BrokerProcess, Wire, wait_until
from replctl import AsyncClient, Client, ReplError
from replwire.snapshot_file import CHECKSUM_BYTES, checksum_line, decode_header

PART = 50_000


def fetch(wire: Wire, session: str = "s") -> bytes:
    """Save a session and return the file's bytes."""
    saved = wire.ask("save", session=session)
    assert saved.status == ["done"]
    data = b""
    while len(data) < saved["bytes"]:
        part = wire.ask("get-snapshot", session=session, snapshot=saved["snapshot"], offset=len(data))
        assert (part.status, part["bytes"]) == (["done"], saved["bytes"])
        data += base64.b64decode(part["data"])
    return data


def put(wire: Wire, file: bytes) -> str:
    """Send a file and return its id."""
    snapshot, at = None, 0
    while at < len(file):
        part = base64.b64encode(file[at : at + PART]).decode()
        sent = wire.ask("put-snapshot", snapshot=snapshot, offset=at, data=part, last=at + PART >= len(file))
        assert sent.status == ["done"], sent["err"]
        snapshot, at = sent["snapshot"], at + PART
    return str(snapshot)


def with_checksum(head_and_payload: bytes) -> bytes:
    return head_and_payload + checksum_line(hashlib.sha256(head_and_payload).hexdigest())


def test_a_saved_session_goes_on_in_a_new_one(wire: Wire) -> None:
    wire.run(
        "import json, threading\nfactor = 3\ndata = {'a': [1]}\nsame = data['a']\ndef scale(n): return n * factor\n"
        "lock = threading.Lock(); big = bytes(2_000_000)"
    )
    file = fetch(wire)
    header, _ = decode_header(file)
    assert (header.runtime, header.session, [each.name for each in header.skipped]) == ("python", "s", ["lock"])
    wire.ask("close", session="s")
    opened = wire.ask("new-session", name="later", snapshot=put(wire, file))
    assert (opened["count"], opened["bytes"], opened.get("notice")) == (header.count, header.bytes, None)
    assert opened["skipped"] == [{"name": "lock", "why": "lock: a lock belongs to its process"}]
    code = "same.append(2); factor = 10; json.dumps(data), scale(2), len(big)"
    assert wire.run(code, session="later").value == "('{\"a\": [1, 2]}', 20, 2000000)"


def test_a_save_waits_for_its_turn_and_can_be_interrupted(wire: Wire) -> None:
    wire.run("class Slow:\n    def __reduce__(self):\n        import time; time.sleep(60)\nslow = Slow()")
    request = wire.send("save", session="s")
    wait_until(lambda: wire.ask("info", session="s", variables=False)["info"]["running"] == 2, "it runs")
    wire.ask("interrupt", session="s")
    assert wire.answer(request).status == ["done", "interrupted"]
    assert wire.run("slow is not None").value == "True"


def test_a_snapshot_is_fetched_once_and_a_later_one_replaces_it(wire: Wire) -> None:
    wire.run("x = 1")
    first, second = (wire.ask("save", session="s")["snapshot"] for _ in range(2))
    assert wire.ask("get-snapshot", session="s", snapshot=first, offset=0).status[-1] == "snapshot-not-found"
    ahead = wire.ask("get-snapshot", session="s", snapshot=second, offset=7)
    assert (ahead.status[-1], "begins at 0" in ahead["err"]) == ("invalid-request", True)
    assert wire.ask("get-snapshot", session="s", snapshot=second, offset=0).status == ["done"]
    assert wire.ask("get-snapshot", session="s", snapshot=second, offset=0).status[-1] == "snapshot-not-found"


def test_a_snapshot_that_nobody_fetches_is_dropped(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.transfer-idle-ms=100", "limits.max-snapshot-bytes=100000")
    with broker.wire() as wire:
        wire.run("x = 1")
        snapshot = wire.ask("save", session="s")["snapshot"]

        def is_dropped() -> bool:
            answer = wire.ask("get-snapshot", session="s", snapshot=snapshot, offset=1)
            return answer.status[-1] == "snapshot-not-found"

        wait_until(is_dropped, "the snapshot is dropped")
        wire.run("big = bytes(200_000)")
        refused = wire.ask("save", session="s")
        assert (refused.status[-1], "100000" in refused["err"]) == ("snapshot-failed", True)
        wire.run("del big")
        file = fetch(wire)
        wire.ask("put-snapshot", data=base64.b64encode(file[:-1]).decode())
        directory = broker.directory / "snapshots"
        wait_until(lambda: os.listdir(directory) == [], "the unfinished file is gone")


def test_a_file_damaged_in_one_byte_opens_no_session(wire: Wire) -> None:
    wire.run("x = {'a': [1, 2.5, 'text']}")
    file = fetch(wire)
    rng = random.Random(7)
    for at in (0, len(b"replctl session "), len(file) - 1, *rng.sample(range(len(file)), 60)):
        broken = bytearray(file)
        broken[at] ^= rng.randrange(1, 256)
        answer = wire.ask("put-snapshot", data=base64.b64encode(broken).decode(), last=True)
        assert answer.status == ["done", "error", "snapshot-failed"], at
    for cut in rng.sample(range(len(file)), 20):
        answer = wire.ask("put-snapshot", data=base64.b64encode(file[:cut]).decode(), last=True)
        assert answer.status == ["done", "error", "snapshot-failed"], cut


def test_a_forged_file_with_a_right_checksum_harms_nobody_else(wire: Wire) -> None:
    """The interpreter alone reads what is behind the header, and either refuses it or has what it is made to have."""
    wire.run("x = {'a': [1, 2.5, 'text']}; f = lambda: x")
    file = fetch(wire)
    _, length = decode_header(file)
    rng, end = random.Random(5), len(file) - CHECKSUM_BYTES
    outcomes = set()
    for at in [length, end - 1, end - 5, *rng.sample(range(length, end), 15)]:
        forged = bytearray(file[:end])
        forged[at] ^= rng.randrange(1, 256)
        answer = wire.ask("new-session", name="forged", snapshot=put(wire, with_checksum(bytes(forged))))
        outcomes.add(answer.status[-1])
        if answer.status == ["done"]:
            wire.ask("close", session="forged")
    assert outcomes <= {"done", "snapshot-failed", "worker-lost"}
    assert "snapshot-failed" in outcomes
    assert [each["name"] for each in wire.ask("ls-sessions")["sessions"]] == ["s"]
    assert wire.run("f() is x").value == "True"


@pytest.mark.parametrize(
    ("runtime", "code", "check", "value"),
    [
        ("bash", "declare -A m=([a]=1); f() { echo hi; }", "f; echo ${m[a]}", "hi\n1\n"),
        pytest.param(
            "node",
            "let m = new Map([[1, [2]]]); function g() { return 5 }",
            "console.log(m.get(1)[0] + g())",
            "7\n",
            marks=pytest.mark.needs_program("node"),
        ),
    ],
)
def test_other_runtimes_go_on_too_and_not_in_another(
    wire: Wire, runtime: str, code: str, check: str, value: str
) -> None:
    wire.run(code, runtime=runtime)
    file = fetch(wire)
    refused = wire.ask("new-session", name="no", runtime="python", snapshot=put(wire, file))
    assert refused.status == ["done", "error", "snapshot-failed"]
    assert wire.ask("new-session", name="later", snapshot=put(wire, file))["count"] == 2
    assert wire.run(check, session="later").out == value
    end = len(file) - CHECKSUM_BYTES
    forged = with_checksum(file[: end - 9] + b"\0garbage\n")
    assert wire.ask("new-session", name="no", snapshot=put(wire, forged)).status[-1] == "snapshot-failed"


def test_the_version_of_the_runtime_that_saved_it_is_said_if_it_is_another(wire: Wire) -> None:
    wire.run("x = 1")
    file = fetch(wire)
    version = decode_header(file)[0].runtime_version
    other = with_checksum(file[:-CHECKSUM_BYTES].replace(version.encode(), b"9.9.9", 1))
    opened = wire.ask("new-session", name="later", snapshot=put(wire, other))
    assert opened["notice"] == f"the snapshot was saved by python 9.9.9, this is {version}"


def test_both_clients_save_and_open_files(broker: BrokerProcess, wire: Wire, tmp_path: Path) -> None:
    wire.run("x = list(range(300_000)); g = (n for n in x)")
    file = tmp_path / "work.session"
    file.write_text("old")
    with Client(broker.endpoint) as client:
        saved = client.save("s", file)
        assert [each.name for each in saved.skipped or []] == ["g"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert client.new("sync", from_file=file).count == 1
        assert client.eval("len(x)", "sync").value == "300000"

    async def again() -> None:
        async with AsyncClient(broker.endpoint) as client:
            await client.save("sync", tmp_path / "again")
            assert (await client.new("async", from_file=tmp_path / "again")).count == 1
            assert (await client.eval("x[-1]", "async")).value == "299999"

    asyncio.run(again())


def test_a_save_that_fails_leaves_the_file_that_was_there(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "work.session"
    file.write_text("old")
    with Client(broker.endpoint) as client:
        with pytest.raises(ReplError, match="session-not-found"):
            client.save("nothing", file)
        with pytest.raises(ReplError, match="not a session saved by replctl"):
            client.new("a", from_file=file)
        with pytest.raises(FileNotFoundError):
            client.save("nothing", tmp_path / "no" / "file")
    assert [each.name for each in tmp_path.iterdir()] == ["work.session"]
    assert file.read_text() == "old"


def test_a_client_waits_where_it_is_told_that_it_asks_too_often(
    start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start("limits.max-part-bytes=65536", "limits.max-request-bytes-per-s=400000")
    with Client(broker.endpoint) as client:
        client.eval("import random; x = random.Random(1).randbytes(1_000_000)", "s")
        client.save("s", tmp_path / "file")
        client.new("later", from_file=tmp_path / "file")
        assert client.eval("len(x)", "later").value == "1000000"
