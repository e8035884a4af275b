"""Private directories: see replwire.private_directories."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.sqlite_backend import SqliteBackend
from replbroker.sinks.transcript_backend import TranscriptBackend, TranscriptInfo
from replctl.acp.modes import Mode
from replctl.acp.store import AcpSessionRecord, AcpSessionStore
from replctl.mcp.http import load_token
from replwire.keys import KeyStore
from replwire.private_directories import make_private_directory


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


HEAD = TranscriptInfo("s1", None, "python", "2026-01-01T00:00:00Z")
RECORD = AcpSessionRecord(id="r1", cwd="/", created="2026-01-01T00:00:00Z", mode=Mode.AUTO, runtime="python")


def create_transcript(backend: TranscriptBackend) -> None:
    backend.create(HEAD)
    backend.close_all()


def modes(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): stat.S_IMODE(path.stat().st_mode) for path in top.rglob("*") if path.is_dir()}


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    "make",
    [
        make_private_directory,
        lambda place: create_transcript(JsonlBackend(place, 1000)),
        lambda place: create_transcript(SqliteBackend(place, 1000)),
        lambda place: KeyStore(str(place.parent)).add_token("ada", "a" * 32),
        lambda place: AcpSessionStore(str(place)).save(RECORD),
        lambda place: load_token(str(place / "token")),
    ],
    ids=["helper", "jsonl", "sqlite", "keys", "acp", "mcp"],
)
def test_every_parent_that_is_missing_is_made_for_its_owner_alone(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "home/state/replctl/keys")
    found = modes(tmp_path)
    assert {"home", "home/state", "home/state/replctl"} <= set(found)
    assert set(found.values()) == {0o700}


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    make_private_directory(tmp_path / "open/own")
    assert modes(tmp_path) == {"open": 0o755, "open/own": 0o700}


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_directory(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file/below")
