"""Both transcript stores: one interface, the same results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from replbroker.core.effects import PublishEvent
from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.sqlite_backend import SqliteBackend
from replbroker.sinks.transcript_backend import (
    CorruptEntry,
    NoTranscript,
    TranscriptBackend,
    TranscriptExists,
    TranscriptInfo,
)
from replbroker.sinks.transcript_sink import TranscriptSink

Make = Callable[..., TranscriptBackend]


@pytest.fixture(params=[JsonlBackend, SqliteBackend], ids=["jsonl", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Open the store in the same directory any number of times."""
    opened: list[TranscriptBackend] = []

    def make(most: int = 1 << 30) -> TranscriptBackend:
        opened.append(request.param(tmp_path / "t", most))
        return opened[-1]

    yield make
    for each in opened:
        each.close_all()


def _head(session: str, name: str | None = "work") -> TranscriptInfo:
    return TranscriptInfo(session, name, "python", "2026-01-01T00:00:00+00:00")


def _entry(seq: int, **more: Any) -> bytes:
    return json.dumps({"type": "eval/finished", "seq": seq} | more).encode()


def test_a_transcript_is_removed_unless_another_process_writes_it(make: Make) -> None:
    writer, other = make(), make()
    for session in ("a", "b"):
        writer.create(_head(session))
        writer.append(session, [_entry(1, code="x = 1")])
    writer.close("b")
    assert [other.remove("a"), other.remove("b")] == [False, True]
    assert [info.session for info in other.list()] == ["a"]
    assert len(list(other.search("x = 1"))) == 1
    with pytest.raises(NoTranscript):
        other.remove("b")


def test_what_was_appended_is_loaded_in_order_also_by_the_next(make: Make) -> None:
    first = make()
    first.create(_head("a"))
    first.append("a", [_entry(1), _entry(2)])
    first.append("a", [_entry(3)])
    first.close_all()
    again = make()
    assert [entry["seq"] for entry in again.load("a", strict=True)] == [1, 2, 3]
    assert [entry["seq"] for entry in again.entries_since("a", 1)] == [2, 3]
    again.open(_head("a"))
    again.append("a", [_entry(4)])
    assert [entry["seq"] for entry in again.load("a")] == [1, 2, 3, 4]


def test_one_is_created_once_and_got_by_its_exact_id(make: Make) -> None:
    backend = make()
    assert backend.get("a") is None
    with pytest.raises(NoTranscript):
        backend.open_existing("a")
    with pytest.raises(NoTranscript):
        next(backend.load("a"))
    backend.create(_head("a"))
    with pytest.raises(TranscriptExists):
        backend.create(_head("a"))
    got = make().get("a")
    assert got is not None
    assert (got.session, got.name, got.runtime) == ("a", "work", "python")
    assert make().get("work") is None


@pytest.mark.parametrize("bad", ["../a", "a/b", "", "a.b"])
def test_an_id_that_is_no_id_reaches_no_file(make: Make, bad: str) -> None:
    backend = make()
    assert backend.get(bad) is None
    with pytest.raises(NoTranscript):
        backend.create(_head(bad))


def test_the_newest_comes_first_and_names_may_repeat(make: Make) -> None:
    backend = make()
    for session, name in (("a", "work"), ("b", "work"), ("c", None)):
        backend.create(_head(session, name))
        backend.append(session, [_entry(1)])
    backend.append("b", [_entry(2)])
    latest = backend.latest()
    assert latest is not None
    assert latest.session == "b"
    assert {head.session for head in backend.list()} == {"a", "b", "c"}
    assert [head.session for head in backend.find("work")] == ["b", "a"]
    assert [head.session for head in backend.find("c")] == ["c"]


def test_who_holds_the_lock_writes_alone(make: Make) -> None:
    writer, other = make(), make()
    writer.create(_head("a"))
    assert other.lock("a") is None
    with pytest.raises(OSError, match=r".*"):
        other.append("a", [_entry(1)])
    writer.close("a")
    release = other.lock("a")
    assert release is not None
    release()
    writer.append("a", [_entry(1)])


def test_what_belongs_to_no_session_is_written_by_every_broker_of_the_user(make: Make) -> None:
    one, other = make(), make()
    for seq, backend in enumerate((one, other, one), 1):
        backend.open(_head("broker", None))
        backend.append("broker", [_entry(seq)])
    assert [entry["seq"] for entry in make().load("broker")] == [1, 2, 3]


def test_text_is_found_in_code_output_values_and_errors_in_any_case(make: Make) -> None:
    backend = make()
    backend.create(_head("a"))
    backend.create(_head("b"))
    backend.append("a", [_entry(1, out="A needle here"), _entry(2, agent="needle"), _entry(3, value="'Needle'")])
    backend.append("b", [_entry(1, error='"quoted" needles É Straße')])
    found = [entry["seq"] for entry in backend.search("needle")]
    assert sorted(found) == [1, 1, 3]
    assert [entry["seq"] for entry in backend.search("NEEDLE", "b")] == [1]
    assert [entry["seq"] for entry in backend.search('"quoted" needle')] == [1]
    assert [entry["seq"] for entry in backend.search("é")] == [1]
    assert [entry["seq"] for entry in backend.search("STRASSE")] == [1]
    assert list(backend.search("needle OR x")) == []


def test_a_transcript_that_grows_too_long_loses_its_older_half(make: Make) -> None:
    backend = make(20_000)
    backend.create(_head("a"))
    for seq in range(1, 301):
        backend.append("a", [_entry(seq, out="x" * 100)])
    seqs = [entry["seq"] for entry in backend.load("a")]
    assert seqs[-1] == 300
    assert seqs == list(range(seqs[0], 301))
    assert 1 < seqs[0] < 300
    head = backend.get("a")
    assert head is not None
    assert head.bytes <= 20_000
    assert [entry["seq"] for entry in backend.search("xxx")] == seqs


def test_the_oldest_go_when_there_is_too_much_but_none_that_is_written(make: Make) -> None:
    backend = make()
    for session in ("a", "b", "c"):
        backend.create(_head(session))
        backend.append(session, [_entry(1, out="x" * 1000)])
        if session != "a":
            backend.close(session)
    assert make().prune(0.0, 1500, frozenset()) == 1
    assert {head.session for head in backend.list()} == {"a", "c"}  # a is written
    assert make().prune(2e12, 1 << 30, frozenset({"c"})) == 0
    backend.close("a")
    assert make().prune(2e12, 1 << 30, frozenset({"c"})) == 1
    assert [head.session for head in backend.list()] == ["c"]
    assert list(backend.search("xxx")) != []


def test_locks_of_a_killed_broker_are_tidied_away(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path, 1 << 20)
    backend.create(_head("a"))
    for name in ("b", "gone"):
        (tmp_path / f"{name}.lock").touch()
    other = SqliteBackend(tmp_path, 1 << 20)
    other.create(_head("b"))
    backend.prune(0.0, 1 << 30, frozenset())
    assert sorted(path.stem for path in tmp_path.glob("*.lock")) == ["a", "b"]
    other.close_all()
    (tmp_path / "b.lock").touch()
    backend.prune(0.0, 1 << 30, frozenset())
    assert [path.stem for path in tmp_path.glob("*.lock")] == ["a"]
    backend.close_all()


def test_a_damaged_line_is_skipped_and_a_strict_reader_is_told(tmp_path: Path) -> None:
    backend = JsonlBackend(tmp_path, 1 << 20)
    backend.create(_head("a"))
    backend.append("a", [_entry(1)])
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"half\n\xff\xfe\n' + _entry(2) + b"\n")
    backend.close_all()
    assert [entry["seq"] for entry in backend.load("a")] == [1, 2]
    with pytest.raises(CorruptEntry):
        list(backend.load("a", strict=True))


def test_a_disk_that_is_full_when_the_older_half_goes_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = JsonlBackend(tmp_path, 2000)
    backend.create(_head("a"))
    backend.append("a", [_entry(1, out="x" * 500)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("replbroker.sinks.jsonl_backend.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            backend.append("a", [_entry(2, out="x" * 500)])
    assert [head.name for head in backend.find("work")] == ["work"]
    backend.append("a", [_entry(3, out="x" * 500)])
    assert [entry["seq"] for entry in backend.load("a")] == [1, 3]
    backend.close_all()


def test_no_file_is_there_before_the_first_entry(tmp_path: Path) -> None:
    backend = JsonlBackend(tmp_path / "t", 1 << 20)
    assert list(backend.list()) == []
    assert not (tmp_path / "t").exists()


def test_more_sessions_than_descriptors_can_be_written(tmp_path: Path) -> None:
    backend = JsonlBackend(tmp_path, 1 << 20)
    for turn in (1, 2):
        for number in range(100):
            backend.open(_head(f"s{number}"))
            backend.append(f"s{number}", [_entry(turn)])
    assert all([entry["seq"] for entry in backend.load(f"s{number}")] == [1, 2] for number in range(100))
    backend.close_all()


class _FullOnFirstOpen:
    """A store whose disk is full once."""

    def __init__(self, backend: TranscriptBackend) -> None:
        self._backend = backend
        self._full = True

    def open(self, head: TranscriptInfo) -> None:
        full, self._full = self._full, False
        if full:
            raise OSError("no room")
        self._backend.open(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_a_session_keeps_its_name_when_the_event_that_tells_it_is_lost(make: Make) -> None:
    transcript = TranscriptSink(_FullOnFirstOpen(make()), 1e9, 1 << 30)  # type: ignore[arg-type]
    created = json.dumps({"type": "session/created", "seq": 1, "name": "work", "runtime": "bash"}).encode()
    transcript.on_event(PublishEvent("session/created", "a", created, 0.0), 0.0)
    transcript.flush(1.0)
    transcript.on_event(PublishEvent("eval/finished", "a", _entry(2), 1.0), 1.0)
    transcript.close()
    assert transcript.lost_events == 1
    assert [(head.session, head.runtime) for head in make().find("work")] == [("a", "bash")]


class _FullForLargeEntries:
    """A store whose disk has room for small entries alone."""

    def __init__(self) -> None:
        self.appended: SimpleQueue[int] = SimpleQueue()

    def append(self, _: str, entries: list[bytes]) -> None:
        self.appended.put(len(entries))
        if any(len(entry) > 1000 for entry in entries):
            raise OSError("no room")

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


def test_a_disk_that_is_full_for_some_entries_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = _FullForLargeEntries()
    transcript = TranscriptSink(store, 1e9, 1 << 30)  # type: ignore[arg-type]
    for at, size in enumerate([2000, 1] * 5):
        transcript.on_event(PublishEvent("eval/finished", "a", _entry(at, out="x" * size), float(at)), float(at))
        transcript.flush(at + 1.0)
        assert store.appended.get(timeout=20) == 1
    transcript.close()
    assert transcript.lost_events == 5
    assert [record.getMessage() for record in caplog.records] == ["transcripts cannot be written: no room"]


class _StuckStore:
    """A store whose disk does not answer until it is released."""

    def __init__(self) -> None:
        import threading

        self.go = threading.Event()
        self.entries: list[bytes] = []

    def open(self, _: TranscriptInfo) -> None:
        self.go.wait(20)

    def append(self, _: str, entries: list[bytes]) -> None:
        self.entries += entries

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


def test_a_disk_that_hangs_holds_nobody_up_and_what_waits_for_it_is_bounded() -> None:
    stuck = _StuckStore()
    transcript = TranscriptSink(stuck, 1.0, 1)  # type: ignore[arg-type]
    body = _entry(1, out="x" * 1_000_000)
    for at in range(40):  # a writer in the same thread would hang here
        transcript.on_event(PublishEvent("eval/finished", "a", body, float(at)), float(at))
        transcript.flush(at + 1.0)
    assert transcript.lost_events > 20
    stuck.go.set()
    transcript.close()
    assert len(stuck.entries) == 40 - transcript.lost_events
    assert transcript.snapshot()["pending-bytes"] == 0
