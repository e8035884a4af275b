"""`replctl cp` and the clients' `put_file` and `get_file`, through the installed command and a real broker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replctl import AsyncClient, Client, ReplError
from replctl.client import files
from replctl.commands.files import SessionPath, parse_place
from stub_broker import command_environment

if TYPE_CHECKING:
    from conftest import Shell

LARGE = random.Random(7).randbytes(1_300_000)  # three parts


class SessionDirectory:
    """The directory of session `work`, and commands given in another one."""

    def __init__(self, shell: Shell, there: Path, here: Path) -> None:
        self.shell, self.there, self.here = shell, there, here

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "replctl", *args]
        environ = command_environment(self.shell.state)
        return subprocess.run(
            command, cwd=self.here, env=environ, capture_output=True, text=True, timeout=30, check=False
        )

    def client(self) -> Client:
        return Client(f"ipc://{self.shell.state}/run/broker.sock", start=False, directory=None)


@pytest.fixture(scope="module")
def session(live: Shell) -> Iterator[tuple[Shell, Path]]:
    there = Path(tempfile.mkdtemp(prefix="rpl-there-", dir="/tmp"))
    assert live.run("new", "work", "--cwd", str(there)).returncode == 0
    yield live, there
    shutil.rmtree(there)


@pytest.fixture
def places(session: tuple[Shell, Path], tmp_path: Path) -> SessionDirectory:
    return SessionDirectory(*session, tmp_path)


@pytest.mark.parametrize("size", [0, 3, 1_300_000])
def test_a_file_goes_into_a_session_and_comes_back(places: SessionDirectory, size: int) -> None:
    (places.here / "out.bin").write_bytes(LARGE[:size])
    put = places.run("cp", "out.bin", "work:in.bin")
    assert (put.returncode, put.stdout, put.stderr) == (0, f"work:{places.there}/in.bin\n", "")
    assert (places.there / "in.bin").read_bytes() == LARGE[:size]
    got = places.run("cp", "work:in.bin", "back.bin")
    assert (got.returncode, got.stdout, got.stderr) == (0, "back.bin\n", "")
    assert (places.here / "back.bin").read_bytes() == LARGE[:size]
    assert sorted(os.listdir(places.here)) == ["back.bin", "out.bin"]


def test_a_directory_keeps_the_files_name(places: SessionDirectory) -> None:
    (places.here / "named.txt").write_text("text")
    assert places.run("cp", "named.txt", "work:").stdout == f"work:{places.there}/named.txt\n"
    (places.here / "sub").mkdir()
    assert places.run("cp", "work:named.txt", "sub").stdout == "sub/named.txt\n"
    assert (places.here / "sub/named.txt").read_text() == "text"
    answer = json.loads(places.run("cp", "--json", "work:named.txt", "./a:b").stdout)
    assert answer["sha256"] == hashlib.sha256(b"text").hexdigest()
    assert (answer["target"], (places.here / "a:b").read_text()) == ("./a:b", "text")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("a", "b"), 2, "one of the two is a file of a session"),
        (("work:a", "work:b"), 2, "one of the two is a file of a session"),
        (("missing", "work:"), 2, "missing: No such file or directory"),
        ((".", "work:"), 2, "Is a directory"),
        (("work:missing", "."), 4, "file not found: missing"),
        (("work:/dev/zero", "zero"), 2, "/dev/zero is not a regular file"),
        (("work:in.bin", "no/such/place"), 2, "No such file or directory"),
        (("here", "work:/etc/new"), 5, "Read-only file system"),
        (("here", "work:no/such"), 4, "No such file or directory"),
        (("here", "nobody:x"), 4, "Session not found: nobody"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(
    places: SessionDirectory, words: tuple[str, str], code: int, text: str
) -> None:
    (places.here / "here").write_text("text")
    (places.there / "in.bin").write_text("text")
    done = places.run("cp", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert os.listdir(places.here) == ["here"]


def test_a_pipe_is_no_file_to_copy(places: SessionDirectory) -> None:
    os.mkfifo(places.here / "pipe")
    assert "is not a regular file" in places.run("cp", "pipe", "work:").stderr


def test_a_terminal_shows_progress(places: SessionDirectory) -> None:
    (places.here / "large").write_bytes(LARGE)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "replctl", "cp", "large", "work:"]
    environ = command_environment(places.shell.state, TERM="xterm")
    done = subprocess.run(
        command, cwd=places.here, env=environ, stdout=subprocess.PIPE, stderr=slave, timeout=30, check=True
    )
    os.close(slave)
    shown = os.read(master, 10_000).decode()
    os.close(master)
    assert done.stdout.decode() == f"work:{places.there}/large\n"
    assert "0.5 of 1.2 MiB, 40 %" in shown
    assert shown.endswith("\r\x1b[K")


# --- going on ---


def test_a_copy_that_was_cut_off_goes_on(places: SessionDirectory) -> None:
    (places.here / "large").write_bytes(LARGE)
    moved: list[int] = []
    with places.client() as client:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                client.put_file(places.here / "large", "cut", "work", lambda at, _: interrupt(moved, at))
        client.put_file(places.here / "large", "cut", "work", lambda at, _: moved.append(at))
        assert moved == [512 << 10, 1024 << 10, len(LARGE)]
        moved.clear()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                client.get_file("cut", places.here / "back", "work", lambda at, _: interrupt(moved, at))
        client.get_file("cut", places.here / "back", "work", lambda at, _: moved.append(at))
        assert moved == [512 << 10, 1024 << 10, len(LARGE)]
    assert (places.here / "back").read_bytes() == LARGE


def interrupt(moved: list[int], at: int) -> None:
    """Note a part, and stop."""
    moved.append(at)
    raise KeyboardInterrupt


@pytest.mark.parametrize("old", [b"old", LARGE + b"longer"])
def test_parts_of_another_file_are_thrown_away(places: SessionDirectory, old: bytes) -> None:
    (places.there / "new").write_bytes(LARGE)
    (places.here / ".back.part").write_bytes(old)
    assert places.run("cp", "work:new", "back").returncode == 0
    assert (places.here / "back").read_bytes() == LARGE
    assert os.listdir(places.here) == ["back"]


def test_a_file_that_grows_while_it_is_fetched_is_not_taken_for_whole(places: SessionDirectory) -> None:
    (places.there / "log").write_bytes(LARGE)

    def change(at: int, _: int) -> None:
        if at == 512 << 10:
            (places.there / "log").write_bytes(b"#" + LARGE)

    with places.client() as client, pytest.raises(ReplError, match="changed while it was read"):
        client.get_file("log", places.here / "log", "work", change)
    assert os.listdir(places.here) == []


def test_a_copy_waits_where_a_limit_says_so(alone: Shell, tmp_path: Path) -> None:
    (alone.state / "config.toml").write_text("[limits]\nmax-request-bytes-per-s = 700000\n")
    (tmp_path / "large").write_bytes(LARGE)
    assert alone.run("new", "work", "--cwd", str(tmp_path)).returncode == 0
    done = alone.run("cp", str(tmp_path / "large"), "work:copy")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "copy").read_bytes() == LARGE


# --- clients ---


def test_both_clients_move_content_without_a_local_file(places: SessionDirectory) -> None:
    with places.client() as client:
        assert client.put_file(LARGE, "bytes", "work").bytes == len(LARGE)
        assert client.get_file("bytes", session="work").data == LARGE

    async def again() -> Any:
        address = f"ipc://{places.shell.state}/run/broker.sock"
        async with AsyncClient(address, start=False, directory=None) as client:
            await client.put_file(LARGE[::-1], "bytes", "work")
            return (await client.get_file("bytes", session="work")).data

    assert asyncio.run(again()) == LARGE[::-1]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("work:a/b", SessionPath("work", "a/b")),
        (":a", SessionPath("default", "a")),
        ("work:", SessionPath("work", "")),
        ("work:/a:b", SessionPath("work", "/a:b")),
        ("ada/work:a", SessionPath("ada/work", "a")),
        ("uid:1000/work:a", SessionPath("uid:1000/work", "a")),
        ("a/b", "a/b"),
        ("./a:b", "./a:b"),
        ("/a:b", "/a:b"),
        ("../a:b", "../a:b"),
        ("a b:c", "a b:c"),
    ],
)
def test_a_place_is_a_local_path_or_one_of_a_session(text: str, place: SessionPath | str) -> None:
    assert parse_place(text) == place


def test_a_small_file_is_one_request() -> None:
    flow = files.put_file(b"text", {"session": "s", "file": "a"}, None)
    assert next(flow).fields == {"session": "s", "file": "a", "data": b"text", "offset": None, "final": None}
