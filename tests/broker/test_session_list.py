"""The session list file: what was appended is read again, and what is damaged never makes an epoch fall."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replbroker import session_list
from replbroker.core.effects import SavedSessions, SessionRecord
from replbroker.endpoints import StartError
from replbroker.session_list import SessionListFile

NOW = 1_800_000_000.0
MINUTES = int(NOW / 60)
NOTHING = SavedSessions(0, [])


def record(name: str | None = "work", epoch: int = 1, open: bool = True, **more: str) -> SessionRecord:
    return SessionRecord(owner="uid:0", name=name, id=f"id-{name}", epoch=epoch, open=open, **more)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SessionListFile]:
    found = SessionListFile(str(tmp_path), "ipc:///b", NOW)
    assert found.read_previous() == (NOTHING, None)
    assert found.start(lambda: NOTHING) is None
    yield found
    found.close()


def path(directory: Path) -> Path:
    (found,) = directory.glob("sessions-*.ndjson")
    return found


def test_the_last_record_of_a_name_counts(file: SessionListFile, tmp_path: Path) -> None:
    file.start(lambda: SavedSessions(3, [record(epoch=4)]))
    for each in (record(epoch=5), record("other"), record(epoch=6, open=False, cause="idle"), record(scope="/a")):
        assert file.append(each) is None
    saved, damage = file.read_previous()
    assert (saved.floor, damage) == (3, None)
    assert saved.records == [record(epoch=6, open=False, cause="idle"), record("other"), record(scope="/a")]
    assert path(tmp_path).stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("*.new"))


def test_a_long_life_writes_the_file_anew(
    file: SessionListFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "_MAX_LINES", 10)
    known = [record()]
    file.start(lambda: SavedSessions(0, known))
    for epoch in range(1, 100):
        known[0] = record(epoch=epoch)
        file.append(known[0])
        assert file.read_previous()[0].records == known
    assert len(path(tmp_path).read_text().splitlines()) <= 12


def test_long_names_of_projects_never_make_a_file_that_is_too_long_to_be_read(
    file: SessionListFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "_MAX_APPENDED_BYTES", 100_000)
    long = record(scope="/" + "\x01" * 4000)
    file.start(lambda: SavedSessions(0, [long]))
    longest = 0
    for _ in range(50):
        assert file.append(long) is None
        longest = max(longest, path(tmp_path).stat().st_size)
    assert 100_000 < longest < 200_000
    assert file.read_previous()[0].records == [long]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"{}\n",
        b'{"version":1,"pid":1,"floor":0}',
        b'{"version":2,"pid":1,"floor":0}\n',
        b'{"version":1,"pid":1,"floor":0}\n{"owner":"uid:0"',
        b'{"version":1,"pid":1,"floor":0}\n[]\n',
        b"\xff\n",
        b'{"version":1,"pid":1,"floor":-1}\n',
        b'{"version":1,"pid":1,"floor":0,"more":1}\n',
        b'{"version":1,"pid":1,"floor":0}\n{"owner":"u","name":"n","id":"i","epoch":4294967295,"open":true}\n',
    ],
)
def test_after_a_damage_epochs_begin_above_all_that_were_told(
    file: SessionListFile, tmp_path: Path, data: bytes
) -> None:
    path(tmp_path).write_bytes(data)
    saved, damage = file.read_previous()
    assert saved == SavedSessions(MINUTES, [])
    assert damage is not None


def test_what_is_no_file_of_ours_is_not_read(file: SessionListFile, tmp_path: Path) -> None:
    found = path(tmp_path)
    found.rename(tmp_path / "elsewhere")
    for make in (lambda: os.mkfifo(found), lambda: found.symlink_to(tmp_path / "elsewhere"), found.mkdir):
        make()
        saved, damage = file.read_previous()
        assert (saved.floor, damage is not None) == (MINUTES, True)
        found.rmdir() if found.is_dir() else found.unlink()


def test_a_write_that_fails_is_told_and_made_good_with_the_next(file: SessionListFile) -> None:
    file.start(lambda: SavedSessions(0, [record(epoch=2)]))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    os.close(full)
    assert "No space left" in (file.append(record()) or "")
    assert file.append(record(epoch=2)) is None
    assert file.read_previous() == (SavedSessions(0, [record(epoch=2)]), None)


def test_a_directory_that_vanished_is_told_and_made_good(file: SessionListFile, tmp_path: Path) -> None:
    for each in tmp_path.iterdir():
        each.unlink()
    assert not file.is_locked()
    file.start(lambda: SavedSessions(0, [record()]))
    file.recreate()
    assert file.is_locked()
    assert file.read_previous() == (SavedSessions(0, [record()]), None)


def test_two_brokers_do_not_keep_one_list(file: SessionListFile, tmp_path: Path) -> None:
    del file
    with pytest.raises(StartError, match="another broker has it"):
        SessionListFile(str(tmp_path), "ipc:///b", NOW)
