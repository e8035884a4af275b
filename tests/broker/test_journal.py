"""The journal: what was appended is read again; whatever is torn, cut or garbled, no epoch falls and no eval runs twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replbroker import journal
from replbroker.core.records import (
    EvalProgress,
    KeyHistory,
    Record,
    SavedEval,
    SavedProgress,
    SavedSpec,
    SavedState,
    SessionDetails,
    SessionRecord,
    WorkerRecord,
)
from replbroker.endpoints import StartError
from replbroker.journal import Journal
from replbroker.journal_lines import JournalHeader, encode_line, open_sessions, read_journal, wrap
from replwire.identities import Principal

NOW = 1_800_000_000.0
MINUTES = int(NOW / 60)
NOTHING = SavedState(0, [])
DETAILS = SessionDetails(spec=SavedSpec("python"), principal=Principal(identity="uid:0"), created_at=NOW, worker=3)


def record(name: str | None = "work", epoch: int = 1, open: bool = True, **more: str) -> SessionRecord:
    details = DETAILS if open else None
    return SessionRecord(owner="uid:0", name=name, id=f"id-{name}", epoch=epoch, open=open, details=details, **more)


def accepted(eval_id: int, progress: EvalProgress, key: str | None = None) -> SavedEval:
    return SavedEval(
        session="id-work",
        eval_id=eval_id,
        route=eval_id,
        request_id=f"r{eval_id}",
        op="eval",
        identity="uid:0",
        holder_agent="ada",
        submitted_at=NOW,
        limit=(1000, None, 1000),
        progress=progress,
        body=b'{"id":"r","op":"eval","code":"x = \\"\xc3\xa9\\n\\""}',
        key=key,
    )


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(str(tmp_path), "ipc:///b", NOW)
    assert found.read_previous() == (NOTHING, None)
    assert found.start(lambda: (0, [])) is None
    yield found
    found.close()


def read(file: Journal) -> SavedState:
    """Return what the file says, which has no damage."""
    saved, damage = file.read_previous()
    assert damage is None
    return saved


def test_the_last_record_of_a_name_counts(file: Journal) -> None:
    file.start(lambda: (3, [record(epoch=4)]))
    for each in (record(epoch=5), record("other"), record(epoch=6, open=False, cause="idle"), record(scope="/a")):
        assert file.append([each]) is None
    saved = read(file)
    assert saved.floor == 3
    assert saved.sessions == [record("other"), record(epoch=6, open=False, cause="idle"), record(scope="/a")]
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert not list(file.path.parent.glob("*.new"))


def test_an_eval_is_read_with_its_last_progress_and_without_its_session_only_by_its_key(file: Journal) -> None:
    begun, ended = EvalProgress(epoch=1, started_at=NOW), EvalProgress(epoch=1, status=["done"], has_key=True)
    file.append([record(), accepted(1, EvalProgress(epoch=1)), accepted(2, EvalProgress(epoch=1), "k")])
    file.append(
        [SavedProgress("id-work", 1, begun), SavedProgress("id-work", 2, ended), SavedProgress("id-work", 9, ended)]
    )
    assert [(each.eval_id, each.progress) for each in read(file).evals] == [(1, begun), (2, ended)]
    assert read(file).evals[0].body == accepted(1, begun).body
    file.append([record(open=False)])
    assert [each.eval_id for each in read(file).evals] == [2]


def test_workers_are_read_until_they_have_ended_and_their_numbers_are_not_used_again(file: Journal) -> None:
    for number in (1, 2, 3):
        file.set_worker(WorkerRecord(number, "digest", f"pid {number}"))
    file.remove_workers([3])
    file.remove_workers([3])
    file.start(lambda: (0, []), read_journal(file.path)[0].workers)
    saved, _ = read_journal(file.path)
    assert saved.workers == [WorkerRecord(1, "digest", "pid 1"), WorkerRecord(2, "digest", "pid 2")]
    assert (saved.last_worker, saved.generation) == (3, 1)


def test_a_process_is_read_until_it_has_ended_also_when_its_first_session_is_over(file: Journal) -> None:
    file.set_worker(WorkerRecord(1, "digest", "pid 1"))
    file.set_worker(WorkerRecord(2, "another", process=1))
    file.leave_worker(1)
    file.leave_worker(9)
    assert read_journal(file.path)[0].workers == [WorkerRecord(1, "", "pid 1"), WorkerRecord(2, "another", process=1)]
    file.leave_worker(2)
    assert read_journal(file.path)[0].workers == [WorkerRecord(1, "", "pid 1")]
    file.remove_workers(file.served_by(1))
    assert read_journal(file.path)[0].workers == []


def test_each_broker_counts_on_and_finds_the_directory_of_the_one_before(tmp_path: Path) -> None:
    for generation in range(1, 4):
        found = Journal(str(tmp_path), "ipc:///b", NOW)
        assert found.read_previous()[0].generation == generation - 1
        found.set_private_dir(f"/tmp/{generation}")
        found.start(lambda: (0, []))
        found.close()
    assert read_journal(found.path)[0].private_dir == "/tmp/3"


def test_a_long_life_writes_the_file_anew(file: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MIN_APPENDED_BYTES", 2000)
    known: list[Record] = [record(scope="/" + "\x01" * 400)]
    file.start(lambda: (0, known))
    longest = 0
    for epoch in range(1, 100):
        known[0] = record(epoch=epoch, scope="/" + "\x01" * 400)
        file.append(known)
        assert read(file).sessions == known
        longest = max(longest, file.path.stat().st_size)
    assert longest < 12_000


def test_the_sessions_of_an_older_version_are_read_and_lost(file: Journal) -> None:
    file.path.write_text(
        '{"version":1,"pid":1,"floor":7}\n{"owner":"uid:0","name":"work","id":"i","epoch":4,"open":true}\n'
    )
    assert read(file) == SavedState(7, [SessionRecord(owner="uid:0", name="work", id="i", epoch=4, open=True)])


def test_the_journal_of_a_newer_version_is_refused_in_words(file: Journal) -> None:
    newer = wrap(b'{"version":4,"pid":1,"floor":0}')
    file.path.write_bytes(newer)
    with pytest.raises(StartError, match="a newer replctl has left its sessions here"):
        file.read_previous()
    assert file.path.read_bytes() == newer
    assert open_sessions(file.path) == set()


def test_the_journal_of_the_version_before_is_read(file: Journal) -> None:
    file.path.write_bytes(wrap(b'{"version":2,"pid":1,"floor":3}') + encode_line(record(name="work")))
    assert [each.name for each in read(file).sessions] == ["work"]


def test_a_restart_of_the_machine_is_noticed(file: Journal) -> None:
    file.start(lambda: (0, []))
    assert not file.read_previous()[0].machine_restarted
    file.path.write_bytes(encode_line(JournalHeader(3, 1, 0, boot="another")))
    assert file.read_previous()[0].machine_restarted


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"{}\n",
        b'{"version":1,"pid":1,"floor":0}',
        b'{"version":1,"pid":1,"floor":0}\n{"owner":"uid:0"',
        b'{"version":1,"pid":1,"floor":0}\n[]\n',
        b"\xff\n",
        b'{"version":1,"pid":1,"floor":-1}\n',
        b'{"version":1,"pid":1,"floor":0}\n{"owner":"u","name":"n","id":"i","epoch":4294967295,"open":true}\n',
        b'00000000 {"version":2,"pid":1,"floor":0}\n',
        wrap(b'{"version":2,"pid":1,"floor":0}')[:-1],
        wrap(b'{"version":2,"pid":1,"floor":-1}'),
    ],
)
def test_after_a_damage_epochs_begin_above_all_that_were_told(file: Journal, data: bytes) -> None:
    file.path.write_bytes(data)
    saved, damage = file.read_previous()
    assert saved == SavedState(MINUTES, [])
    assert damage is not None
    assert open_sessions(file.path) == set()


def whole_journal(directory: Path) -> tuple[Path, bytes, int]:
    """Write a journal; return its path, its bytes and the length of its header."""
    found = Journal(str(directory), "ipc:///b", NOW)
    found.start(lambda: (0, []))
    header = found.path.stat().st_size
    progress = EvalProgress(epoch=2, started_at=NOW)
    found.append([record(epoch=2), accepted(1, EvalProgress(epoch=2), "k")])
    found.append([SavedProgress("id-work", 1, progress)])
    found.set_worker(WorkerRecord(3, "digest", "pid"))
    found.close()
    return found.path, found.path.read_bytes(), header


def test_cut_at_any_byte_it_says_what_was_written_before(tmp_path: Path) -> None:
    path, data, header = whole_journal(tmp_path)
    lines = data.splitlines(keepends=True)
    for end in range(header, len(data) + 1):
        path.write_bytes(data[:end])
        saved, damaged = read_journal(path)
        whole = data[:end].count(b"\n") - 1
        assert damaged == 0
        assert (len(saved.sessions), len(saved.evals)) == (whole >= 1, whole >= 2)
        assert [each.progress.started_at for each in saved.evals] == [NOW if whole >= 3 else None] * (whole >= 2)
        assert len(saved.workers) == (whole >= 4)
    assert len(lines) == 5


def test_with_any_byte_garbled_a_line_is_dropped_and_told_and_nothing_else_is_believed(tmp_path: Path) -> None:
    path, data, header = whole_journal(tmp_path)
    whole, _ = read_journal(path)
    for at in range(header, len(data) - 1):
        for byte in (data[at] ^ 1, 0, 10, 255):
            if byte == data[at]:
                continue
            path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            saved, damaged = read_journal(path)
            assert damaged, (at, byte)
            assert [each for each in saved.sessions if each not in whole.sessions] == []
            assert [each for each in saved.workers if each not in whole.workers] == []
            assert {each.eval_id for each in saved.evals} <= {1}


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, wrapped: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.ndjson"
    header = wrap(b'{"version":2,"pid":1,"floor":0}')
    path.write_bytes(header + (wrap(data) if wrapped else data))
    saved, _ = read_journal(path)
    assert saved.evals == []


def test_what_is_no_file_of_ours_is_not_read(file: Journal, tmp_path: Path) -> None:
    found = file.path
    found.rename(tmp_path / "elsewhere")
    for make in (lambda: os.mkfifo(found), lambda: found.symlink_to(tmp_path / "elsewhere"), found.mkdir):
        make()
        saved, damage = file.read_previous()
        assert (saved.floor, damage is not None) == (MINUTES, True)
        found.rmdir() if found.is_dir() else found.unlink()


def test_a_write_that_fails_is_told_and_made_good_with_the_next(file: Journal) -> None:
    file.start(lambda: (0, [record(epoch=2)]))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    os.close(full)
    assert "No space left" in (file.append([record()]) or "")
    assert file.append([record(epoch=2)]) is None
    assert read(file).sessions == [record(epoch=2)]


def test_what_a_broker_knows_of_keys_is_handed_on_as_long_as_no_record_is_missing(file: Journal) -> None:
    keys = KeyHistory(["a", "b"], {"uid:7": NOW})
    file.start(lambda: (0, [record()]), export_keys=lambda: keys)
    assert read(file).keys == keys
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    os.close(full)
    file.append([record()])
    assert read(file).keys == KeyHistory()  # this broker ended before the next record
    file.append([record()])
    assert read(file).keys == keys
    file.path.write_bytes(file.path.read_bytes().replace(b"work", b"walk", 1))
    assert file.read_previous()[0].keys == KeyHistory()


def test_the_latest_key_that_an_identity_has_lost_is_known(file: Journal) -> None:
    file.start(lambda: (0, [record()]), export_keys=lambda: KeyHistory(["a"], {"uid:0": NOW - 1, "uid:7": NOW - 5}))
    file.append([accepted(1, EvalProgress(epoch=1, has_key=True), "k"), accepted(2, EvalProgress(epoch=1))])
    assert read(file).keys.dropped["uid:0"] == NOW - 1
    file.append([SavedProgress("id-work", 1, EvalProgress(epoch=1))])
    assert read(file).keys == KeyHistory(["a"], {"uid:0": NOW, "uid:7": NOW - 5})


def test_a_directory_that_vanished_is_told_and_made_good(file: Journal, tmp_path: Path) -> None:
    for each in tmp_path.iterdir():
        each.unlink()
    assert not file.is_locked()
    file.start(lambda: (0, [record()]))
    file.recreate()
    assert file.is_locked()
    assert read(file).sessions == [record()]


def test_two_brokers_do_not_keep_one_journal(file: Journal, tmp_path: Path) -> None:
    del file
    with pytest.raises(StartError, match="another broker has it"):
        Journal(str(tmp_path), "ipc:///b", NOW)
