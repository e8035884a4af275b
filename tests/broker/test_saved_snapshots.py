"""Saved sessions in the core: parts that clients send, what becomes of unfinished ones, and the session they open."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replwire.link import AssignedBody, FrameKind, Outcome
from replwire.replies import SkippedName
from replwire.snapshot_file import SnapshotHeader, checksum_line, encode_header


def build_file(payload: bytes = b"names", **fields: Any) -> bytes:
    """A saved session, whose header says what these fields say."""
    about: dict[str, Any] = {"runtime": "python", "runtime_version": "3.11.7", "saved_at": "now", "count": 2}
    header = SnapshotHeader(**{"bytes": len(payload), "session": "old", **about, **fields})
    head = encode_header(header) + payload
    return head + checksum_line(hashlib.sha256(head).hexdigest())


def put(harness: CoreHarness, data: bytes, peer: bytes = b"p1", **fields: Any) -> dict[str, Any]:
    """Send a part."""
    return harness.request("put-snapshot", peer=peer, data=base64.b64encode(data).decode(), **fields)


def put_whole(harness: CoreHarness, file: bytes, peer: bytes = b"p1") -> str:
    """Send a file in two parts, and return its id."""
    half = len(file) - 10
    snapshot = put(harness, file[:half], peer)["snapshot"]
    answer = put(harness, file[half:], peer, snapshot=snapshot, offset=half, last=True)
    assert answer["bytes"] == len(file)
    return str(snapshot)


def test_a_file_that_was_sent_whole_opens_a_session(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    file = build_file(skipped=[SkippedName("lock", "no")])
    snapshot = put_whole(harness, file)
    asked = harness.send("new-session", name="new", snapshot=snapshot)
    harness.workers[1].send_ready()
    restore = harness.workers[1].frames(FrameKind.ASSIGN)[0][1]["restore"]
    assert file[restore["offset"] :][: restore["size"]] == b"names"
    assert restore["version"] == "3.11.7"
    body = AssignedBody(None, None, [SkippedName("f", "no module")], "another python", restored=1)
    harness.workers[1].send(FrameKind.ASSIGNED, body, epoch=1)
    answer = harness.final_reply(asked)
    assert (answer["count"], answer["bytes"], answer["created"], answer["name"]) == (1, 5, True, "new")
    assert [each["name"] for each in answer["skipped"]] == ["lock", "f"]
    assert answer["notice"] == "another python"
    assert harness.discarded == [restore["path"]]
    assert harness.written[restore["path"]] == file
    assert "session/restored" in harness.event_types()
    assert harness.is_idle()


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"garbage",
        build_file().replace(b"session 1", b"session 2", 1),
        build_file()[:-1],
        build_file() + b"x",
        build_file(bytes=4),
        build_file(bytes=1 << 60),
        build_file().replace(b"names", b"nemas"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_of_it_stays(harness: CoreHarness, file: bytes) -> None:
    assert put(harness, file, last=True)["status"] == ["done", "error", "snapshot-failed"]
    assert harness.state.uploads.bytes_of("self") == 0
    assert set(harness.discarded) == harness.written.keys()


def test_a_session_begins_with_a_whole_snapshot_of_its_own_connection_only(harness: CoreHarness) -> None:
    file = build_file()
    begun = put(harness, file[:200])["snapshot"]
    for peer, snapshot in ((b"p1", begun), (b"p1", "0"), (b"p2", put_whole(harness, file, b"p3"))):
        refused = harness.request("new-session", peer=peer, name="new", snapshot=snapshot)
        assert refused["status"] == ["done", "error", "snapshot-not-found"]
    assert len(harness.state.sessions) == 0


def test_a_snapshot_is_used_once(harness: CoreHarness) -> None:
    snapshot = put_whole(harness, build_file())
    assert harness.request("new-session", name="a", snapshot=snapshot)["status"] == ["done"]
    assert "snapshot-not-found" in harness.request("new-session", name="b", snapshot=snapshot)["status"]


@pytest.mark.parametrize("fields", [{"offset": 5}, {"offset": 201}, {"offset": 0}])
def test_parts_come_one_after_the_other(harness: CoreHarness, fields: dict[str, int]) -> None:
    snapshot = put(harness, build_file()[:200])["snapshot"]
    refused = put(harness, b"x", snapshot=snapshot, **fields)
    assert refused["status"] == ["done", "error", "invalid-request"]
    assert "begins at 200" in refused["err"]


def test_a_part_for_another_snapshot_is_refused(harness: CoreHarness) -> None:
    snapshot = put(harness, build_file()[:200])["snapshot"]
    assert "snapshot-not-found" in put(harness, b"x", b"p2", snapshot=snapshot, offset=200)["status"]
    again = put(harness, build_file()[:200])["snapshot"]
    assert "snapshot-not-found" in put(harness, b"x", snapshot=snapshot, offset=200)["status"]
    assert again != snapshot
    assert len(harness.discarded) == 1


@pytest.mark.parametrize("how", ["disconnect", "idle"])
def test_an_unfinished_file_goes_with_its_sender_or_when_no_more_comes(harness: CoreHarness, how: str) -> None:
    put(harness, build_file()[:200])
    put_whole(harness, build_file(), b"p2")
    if how == "disconnect":
        harness.disconnect(b"p1")
        harness.disconnect(b"p2")
    else:
        harness.wait(harness.state.limits.transfer_idle_ms / 1000 + 1)
    assert set(harness.discarded) == harness.written.keys()
    assert len(harness.discarded) == 2
    assert harness.state.uploads.bytes_of("self") == 0
    assert harness.is_idle()


def test_parts_and_snapshots_are_bounded_for_an_identity_in_sum(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_snapshot_bytes=150_000, max_part_bytes=65_536)
    refused = put(harness, build_file(bytes(70_000)))
    assert (refused["status"][-1], refused["limit"]) == ("message-too-large", "max-part-bytes")
    file = build_file(bytes(100_000))
    snapshot = put(harness, file[:60_000])["snapshot"]
    put(harness, file[60_000:], snapshot=snapshot, offset=60_000, last=True)
    refused = put(harness, file[:60_000], b"p2")
    assert (refused["status"][-1], refused["limit"]) == ("message-too-large", "max-snapshot-bytes")
    assert harness.request("new-session", name="a", snapshot=snapshot)["status"] == ["done"]
    assert put(harness, file[:60_000], b"p2")["status"] == ["done"]


def test_a_disk_that_is_full_is_said(harness: CoreHarness) -> None:
    harness.write_error = "No space left on device"
    refused = put(harness, build_file()[:200])
    assert refused["status"] == ["done", "error", "snapshot-failed"]
    assert "No space left" in refused["err"]
    assert set(harness.discarded) == harness.written.keys()


def test_a_runtime_that_is_not_the_snapshots_is_refused(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(runtimes=("python", "bash"))
    snapshot = put_whole(harness, build_file(runtime="bash"))
    refused = harness.request("new-session", name="a", runtime="python", snapshot=snapshot)
    assert refused["status"] == ["done", "error", "snapshot-failed"]
    assert harness.request("new-session", name="a", snapshot=snapshot)["status"] == ["done"]
    assert harness.session("a").spec.runtime == "bash"
    unknown = put_whole(harness, build_file(runtime="cobol"))
    assert "runtime-not-allowed" in harness.request("new-session", name="b", snapshot=unknown)["status"]


def test_an_interpreter_that_refuses_the_snapshot_leaves_no_session(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    asked = harness.send("new-session", name="a", snapshot=put_whole(harness, build_file()))
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned("not a snapshot")
    assert harness.final_reply(asked)["status"] == ["done", "error", "snapshot-failed"]
    assert len(harness.state.sessions) == 0
    assert set(harness.discarded) == harness.written.keys()


def test_an_existing_session_cannot_begin_with_a_snapshot(harness: CoreHarness) -> None:
    harness.open("a")
    snapshot = put_whole(harness, build_file())
    refused = harness.request("new-session", name="a", snapshot=snapshot, **{"if-exists": "reuse"})
    assert refused["status"] == ["done", "error", "invalid-request"]


def test_a_save_is_queued_and_leaves_a_session_in_plan_mode_as_it_is(harness: CoreHarness) -> None:
    harness.open("work")
    harness.request("set-mode", session="work", to="plan")
    running = harness.send("save", session="work")
    harness.finish(running, snapshot="1", count=2, bytes=9)
    assert harness.final_reply(running)["count"] == 2
    assert "session/saved" in harness.event_types()
    assert "plan-mode" in put(harness, build_file(), mode="plan")["status"]


def test_a_part_is_asked_of_the_worker_that_wrote_it(harness: CoreHarness) -> None:
    harness.open("work")
    asked = harness.send("get-snapshot", session="work", snapshot="1", offset=0)
    harness.worker("work").reply(asked, Outcome.OK, data="AA==")
    assert harness.final_reply(asked)["data"] == "AA=="
    harness.worker("work").exit()
    refused = harness.request("get-snapshot", session="work", snapshot="1", offset=0)
    assert refused["status"] == ["done", "error", "snapshot-not-found"]
