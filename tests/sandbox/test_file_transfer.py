"""Files put into sandboxed sessions and fetched from them: what the session's own code may do, and nothing more."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attack_targets import begin, end, uid_of
from kit import BrokerProcess, Wire, close_sessions

TEXT = bytes(range(256)) * 5
PART = 1000


def put(wire: Wire, file: str | Path, data: bytes = TEXT, session: str = "s", **more: Any) -> Any:
    """Send a part."""
    encoded = base64.b64encode(data).decode()
    return wire.ask("put-file", session=session, file=str(file), data=encoded, **more)


def get(wire: Wire, file: str | Path, session: str = "s", **more: Any) -> Any:
    """Fetch a part."""
    return wire.ask("get-file", session=session, file=str(file), **more)


def content(answer: Any) -> bytes:
    """Return what a part has."""
    return base64.b64decode(answer["data"])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def names_of(directory: Path, name: str) -> list[str]:
    """Return the names of a file and of what belongs to it; protected names have placeholders beside them."""
    return sorted(each for each in os.listdir(directory) if each.removeprefix(".").split(".")[0] == name)


@pytest.fixture(scope="module")
def broker(who: str) -> Iterator[BrokerProcess]:
    broker = begin(who, "limits.rate-limit-per-min=0", "limits.max-transfer-bytes=300000000")
    yield broker
    end(broker)


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with broker.wire() as wire:
        yield wire
        close_sessions(wire)


@pytest.fixture
def work(who: str, wire: Wire) -> Iterator[Path]:
    """The directory of session `s`."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-files-", dir="/tmp"))
    os.chown(directory, uid_of(who), uid_of(who))
    assert wire.ask("new-session", name="s", cwd=str(directory)).status == ["done"]
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("file", ["a.bin", "sub/../a.bin", "/tmp/a.bin", "/dev/shm/a.bin"])
def test_a_file_comes_back_as_it_was_put(wire: Wire, work: Path, file: str) -> None:
    (work / "sub").mkdir()
    answer = put(wire, file)
    assert (answer.status, answer["bytes"], answer["sha256"]) == (["done"], len(TEXT), sha256(TEXT))
    back = get(wire, file)
    assert (content(back), back["offset"], back["bytes"]) == (TEXT, len(TEXT), len(TEXT))
    assert back["sha256"] == sha256(TEXT)
    assert back["file"] == os.path.normpath(work / file)
    assert wire.run(f"open({file!r}, 'rb').read() == bytes(range(256)) * 5").value == "True"
    assert wire.run("import os; sorted(n for n in os.listdir() if n.endswith('.part'))").value == "[]"


def test_a_file_in_the_directory_is_the_owners(wire: Wire, work: Path, who: str) -> None:
    put(wire, "a.bin")
    status = (work / "a.bin").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (uid_of(who), 0o644)
    (work / "a.bin").chmod(0o750)
    put(wire, "a.bin", b"new")
    assert ((work / "a.bin").read_bytes(), (work / "a.bin").stat().st_mode & 0o777) == (b"new", 0o750)


@pytest.mark.parametrize("runtime", ["python", pytest.param("node", marks=pytest.mark.needs_program("node")), "bash"])
def test_it_works_beside_a_running_eval_in_every_runtime(wire: Wire, work: Path, runtime: str) -> None:
    assert wire.ask("new-session", name="other", runtime=runtime, cwd=str(work)).status == ["done"]
    code = {"python": "import time; time.sleep(60)", "node": "while (true) {}", "bash": "sleep 60"}[runtime]
    running = wire.send("eval", session="other", code=code)
    assert put(wire, "x", session="other").status == ["done"]
    assert content(get(wire, "x", session="other")) == TEXT
    wire.ask("interrupt", session="other")
    wire.answer(running)


# --- parts ---


def test_a_file_of_several_parts_is_there_when_all_have_arrived(wire: Wire, work: Path) -> None:
    whole = sha256(TEXT)
    put(wire, "a", b"old")
    assert put(wire, "a", TEXT[:PART], final=False, sha256=whole)["offset"] == PART
    assert (work / "a").read_text() == "old"
    assert put(wire, "a", b"", final=False, sha256=whole)["offset"] == PART
    assert put(wire, "a", TEXT[PART:], offset=PART, sha256=whole)["sha256"] == whole
    assert (work / "a").read_bytes() == TEXT
    assert names_of(work, "a") == ["a"]
    first = get(wire, "a", max_bytes=PART)
    assert (content(first), first["offset"], first["bytes"]) == (TEXT[:PART], PART, len(TEXT))
    assert first.get("sha256") is None
    last = get(wire, "a", offset=first["offset"])
    assert (content(last), last["sha256"]) == (TEXT[PART:], whole)


@pytest.mark.usefixtures("work")
def test_a_part_may_come_twice(wire: Wire) -> None:
    whole = sha256(TEXT)
    for _ in range(2):
        assert put(wire, "a", TEXT[:PART], final=False, sha256=whole)["offset"] == PART
    assert put(wire, "a", TEXT[10:], offset=10, sha256=whole)["bytes"] == len(TEXT)


@pytest.mark.usefixtures("work")
def test_a_transfer_goes_on_in_the_next_worker(wire: Wire) -> None:
    whole = sha256(TEXT)
    put(wire, "a", TEXT[:PART], final=False, sha256=whole)
    wire.ask("reset", session="s")
    assert put(wire, "a", b"", final=False, sha256=whole)["offset"] == PART
    assert put(wire, "a", TEXT[PART:], offset=PART, sha256=whole).status == ["done"]


@pytest.mark.usefixtures("work")
def test_a_gap_between_parts_is_refused_with_what_has_arrived(wire: Wire) -> None:
    put(wire, "a", TEXT[:PART], final=False, sha256=sha256(TEXT))
    answer = put(wire, "a", b"x", offset=PART + 1, sha256=sha256(TEXT))
    assert (answer.status[-1], answer["offset"]) == ("invalid-request", PART)


def test_parts_that_are_not_what_was_announced_replace_nothing(wire: Wire, work: Path) -> None:
    put(wire, "a", b"old")
    answer = put(wire, "a", TEXT, sha256=sha256(b"other"))
    assert answer.status[-1] == "invalid-request"
    assert "sha256" in answer["err"]
    assert ((work / "a").read_text(), names_of(work, "a")) == ("old", ["a"])


@pytest.mark.usefixtures("work")
def test_an_empty_file_can_be_moved(wire: Wire) -> None:
    assert put(wire, "a", b"")["bytes"] == 0
    assert (content(get(wire, "a")), get(wire, "a")["sha256"]) == (b"", sha256(b""))


def test_a_large_file_is_hashed_while_the_worker_serves_others(wire: Wire, work: Path) -> None:
    with (work / "large").open("wb") as file:
        file.truncate(250_000_000)
    request = wire.send("get-file", session="s", file="large", offset=250_000_000 - 10)
    assert wire.ask("ls-bindings", session="s").status == ["done"]
    assert wire.answer(request)["bytes"] == 250_000_000


# --- what the session may not ---

NOT_WRITTEN = [
    ("/etc/new", "path-not-allowed"),
    ("/usr/bin/new", "path-not-allowed"),
    ("/new", "path-not-allowed"),
    ("/root/x", "path-not-allowed"),
    ("/proc/self/mem", "invalid-request"),
    ("/proc/1/root/tmp/x", "invalid-request"),
    ("proc/1/comm", "path-not-allowed"),
    ("proc/1/root/x", "path-not-allowed"),
    ("up/etc/new", "path-not-allowed"),
    ("pipe", "invalid-request"),
    ("sub", "invalid-request"),
    ("sub/", "invalid-request"),
    ("..", "invalid-request"),
    ("loop", "invalid-request"),
    ("/dev/null", "invalid-request"),
    ("/dev/zero", "invalid-request"),
    ("/dev/fd/3", "invalid-request"),
    (".git/hooks/x", "path-not-allowed"),
    (".git/config", "path-not-allowed"),
    ("missing/x", "file-not-found"),
    ("a.txt/x", "file-not-found"),
    ("x" * 256, "invalid-request"),
    ("x" * 5000, "invalid-request"),
    ("", "invalid-request"),
    ("a\0b", "invalid-request"),
]
NOT_READ = [
    ("/etc/shadow", "file-not-found"),
    ("/proc/self/environ", "invalid-request"),
    ("proc/1/environ", "path-not-allowed"),
    ("proc/self/environ", "file-not-found"),
    ("pipe", "invalid-request"),
    ("sub", "invalid-request"),
    ("/dev/zero", "invalid-request"),
    ("/dev/random", "invalid-request"),
    ("loop", "invalid-request"),
    ("huge", "message-too-large"),
    ("none", "file-not-found"),
    ("secret", "file-not-found"),
]


@pytest.fixture
def hostile(wire: Wire, work: Path, who: str) -> Path:
    """A directory with everything that a session may try."""
    (work / ".git").mkdir()
    (work / ".git/HEAD").write_text("ref: refs/heads/main")
    (work / ".git/config").write_text("")
    (work / "sub").mkdir()
    (work / "a.txt").write_text("text")
    for path in (work, *work.rglob("*")):
        os.chown(path, uid_of(who), uid_of(who))
    wire.ask("reset", session="s")
    done = wire.run(
        "import os\n"
        "os.symlink('/proc', 'proc'); os.symlink('../../../../../../..', 'up'); os.symlink('loop', 'loop')\n"
        f"os.mkfifo('pipe'); os.symlink({str(work.parent / 'rpl-secret')!r}, 'secret')"
    )
    assert done.status == ["done"], done.messages
    with (work / "huge").open("wb") as file:
        file.truncate(10**12)
    return work


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file beside the session's directory, outside of its sandbox."""
    path = Path("/tmp/rpl-secret")
    path.write_text("not the session's")
    path.chmod(0o666)
    yield path
    path.unlink()


@pytest.mark.parametrize(("file", "word"), NOT_WRITTEN)
def test_what_the_session_may_not_write_is_refused(wire: Wire, hostile: Path, file: str, word: str) -> None:
    before = sorted(str(each) for each in hostile.rglob("*"))
    assert put(wire, file).status == ["done", "error", word]
    assert sorted(str(each) for each in hostile.rglob("*")) == before


@pytest.mark.usefixtures("hostile", "secret")
@pytest.mark.parametrize(("file", "word"), NOT_READ)
def test_what_the_session_may_not_read_is_refused(wire: Wire, file: str, word: str) -> None:
    answer = get(wire, file)
    assert answer.status == ["done", "error", word]
    assert "not the session's" not in json.dumps(answer.messages)


def test_a_read_only_session_keeps_its_directory_as_it_is(wire: Wire, work: Path) -> None:
    wire.ask("new-session", name="reader", cwd=str(work), profile="read-only")
    assert put(wire, "a", session="reader").status[-1] == "path-not-allowed"
    assert put(wire, "/tmp/a", session="reader").status == ["done"]


def test_a_file_is_as_large_as_the_session_may_write_one(wire: Wire, work: Path) -> None:
    answer = put(wire, "a", b"x", offset=257 << 20, sha256=sha256(b""))
    assert (answer.status[-1], answer["limit"]) == ("message-too-large", "sandbox.file-bytes")
    answer = put(wire, "a", b"x" * (513 << 10))
    assert (answer.status[-1], answer["limit"]) == ("message-too-large", "max-part-bytes")
    assert names_of(work, "a") == []


@pytest.mark.usefixtures("work")
def test_a_full_tmp_says_so_and_leaves_nothing(wire: Wire) -> None:
    assert wire.run(
        "f = open('/tmp/fill', 'wb')\ntry:\n while f.write(bytes(1 << 20)): pass\nexcept OSError as e: print(e)"
    )
    answer = put(wire, "/tmp/b", bytes(1 << 18))
    assert (answer.status[-1], answer["err"]) == ("io-error", "No space left on device")
    assert (
        wire.run("import os; os.listdir('/tmp').count('b'), [n for n in os.listdir('/tmp') if 'part' in n]").value
        == "(0, [])"
    )


@pytest.mark.usefixtures("work")
def test_plan_mode_lets_files_be_read_alone(wire: Wire) -> None:
    put(wire, "a")
    assert put(wire, "a", mode="plan").status[-1] == "plan-mode"
    assert get(wire, "a", mode="plan").status == ["done"]


@pytest.mark.usefixtures("work")
def test_a_file_that_was_put_is_told_to_subscribers(wire: Wire, broker: BrokerProcess) -> None:
    with broker.wire() as watcher:
        request = watcher.send("subscribe", session="s", types=["file/"])
        watcher.until(request, "subscribed")
        put(wire, "a", TEXT[:PART], final=False, sha256=sha256(TEXT), agent="ada")
        put(wire, "a", TEXT[PART:], offset=PART, sha256=sha256(TEXT), agent="ada")
        event = watcher.receive()["event"]
    assert (event["type"], event["bytes"]) == ("file/written", len(TEXT))
    assert event["file"].endswith("/a")
    assert event["agent"] == "ada"
