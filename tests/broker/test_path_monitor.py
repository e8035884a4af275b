"""The directory of a broker's own sockets where the machine has none; and paths that cannot be repaired."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from replbroker.endpoints import StartError
from replbroker.file_lock import AlreadyLocked, FileLock
from replbroker.launch import private_temp_dir
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.path_monitor import PathMonitor


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_directory_that_cannot_be_locked_ends_the_start_and_not_in_a_loop(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files", str(tmp))

    for lock, why in ((no_descriptors, "Too many open files"), (lambda _: None, "as soon as it is created")):
        monkeypatch.setattr(private_temp_dir, "_lock", lock)
        with pytest.raises(StartError, match=why):
            PrivateTempDir()
    monkeypatch.undo()


def test_no_directory_for_temporary_files_is_a_start_that_fails_in_words(tmp: Path) -> None:
    tempfile.tempdir = str(tmp / "nowhere")
    with pytest.raises(StartError, match=r"nowhere.*TMPDIR"):
        PrivateTempDir()


def test_it_is_made_anew_in_its_place(tmp: Path) -> None:
    made = PrivateTempDir()
    assert made.exists()
    made.path.rename(tmp / "away")
    assert not made.exists()
    made.recreate()
    assert made.exists()
    made.remove()
    assert sorted(os.listdir(tmp)) == ["away"]


def test_a_lock_file_that_was_removed_can_be_held_again_unless_another_does(tmp: Path) -> None:
    first = FileLock(str(tmp / "lock"))
    (tmp / "lock").unlink()
    assert not first.is_held()
    second = FileLock(str(tmp / "lock"))
    with pytest.raises(AlreadyLocked):
        first.reacquire()
    second.close()
    first.reacquire()
    assert first.is_held()
    first.close()


class BrokenDirectory:
    """A path in the state that the test sets."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.says: str | OSError | None = None

    def repair(self) -> str | None:
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


def test_what_cannot_be_repaired_is_logged_once_until_it_is(tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    place = BrokenDirectory(str(tmp))
    problems: list[list[str]] = []
    places = PathMonitor([place], problems.append)
    for says in (
        None,
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.EROFS, "Read-only file system"),
        "done",
    ):
        place.says = says
        places.due = 0.0
        places.flush(1.0)
    text = f"{tmp}: Read-only file system; it cannot be recreated"
    assert caplog.messages == [text, "done"]
    assert problems == [[text], []]
    places.close()
