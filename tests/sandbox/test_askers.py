"""A root broker opens what a client names with that client's rights: directories, environments, files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import Answer, Broker, LineWire, Wire
from people import ADA, BOB, EVE, PEOPLE, TEAM, connected, file, place
from replworker.confine.report import Report
from sites import end

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 and not os.environ.get("CI"), reason="needs root: its broker, and to be another user"
)
REFUSED = ["done", "error", "invalid-request"]
CLOSED = ("PermissionError", "FileNotFoundError")
Connect = Callable[..., LineWire]


@pytest.fixture(scope="module")
def ground(report: Report) -> Iterator[Path]:
    """Directories of root's, ada's and bob's."""
    assert report.ok
    ground = Path(tempfile.mkdtemp(prefix="rpl-ground-", dir="/tmp"))
    ground.chmod(0o755)
    file(place(ground, "root", 0) / "secret", 0)
    for name, uid in (("ada", ADA), ("bob", BOB), ("eve", EVE)):
        file(place(ground, name, uid) / "own.py", uid, text="own = 1")
    place(ground, "team", 0, 0o2770, TEAM)
    file(ground / "ada/roots", 0)
    file(ground / "ada/shown", 0, 0o644)
    file(ground / "ada/bobs", BOB, 0o620)
    os.chown(ground / "ada/bobs", BOB, ADA)  # its group may write and not read
    file(ground / "ada/everybodys", 0, 0o666)
    file(place(ground / "ada", "closed", 0) / "inner", 0, 0o644)
    os.symlink(ground / "root/secret", ground / "ada/link")
    os.symlink(ground / "root", ground / "ada/way")
    os.link(ground / "root/secret", ground / "ada/hard")
    environment(ground / "ada/env", ADA)
    environment(ground / "root/env", 0)
    yield ground
    shutil.rmtree(ground)


@pytest.fixture(scope="module")
def broker(ground: Path) -> Iterator[Broker]:
    folder = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    broker = Broker(
        folder, "limits.rate-limit-per-min=0", "broker.tcp=127.0.0.1:0", "broker.unix=/FOLDER/run/lines.sock",
        f'session.load-paths=["{ground}"]', sandbox=True, through=[sys.executable, PEOPLE],
    )  # fmt: skip
    for path, mode in ((folder, 0o711), (folder / "run", 0o711), (folder / "run/lines.sock", 0o666)):
        path.chmod(mode)
    yield broker
    end(broker)
    assert "internal error" not in broker.log_text() if (broker.folder / "log").exists() else True


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """A connection of a user's, by `tcp` or `unix`; sessions that it opened are closed with it."""
    with ExitStack() as stack:

        def connect(uid: int, way: str = "tcp", groups: tuple[int, ...] = ()) -> LineWire:
            wire = connected(broker.listening[way], uid, groups)
            stack.callback(wire.close)
            stack.callback(
                lambda: [wire.ask("close", session=each["session"]) for each in wire.ask("ls-sessions")["sessions"]]
            )
            return wire

        yield connect


def environment(path: Path, owner: int) -> None:
    """A python environment as `venv` makes it."""
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", path], check=True, timeout=60)
    for each in (path, *path.rglob("*")):
        os.chown(each, owner, owner, follow_symlinks=False)
    path.chmod(0o700 if owner else 0o755)  # root's own is reached by permissions for all, as ever


def fault(answer: Answer) -> str | None:
    """The type of the exception that the code raised."""
    return str(answer["ex"]["type"]) if "ex" in answer.last else None


def opened(wire: Wire, name: str, **fields: object) -> Wire:
    answer = wire.ask("new-session", name=name, **fields)
    assert answer.status == ["done"], answer.messages
    return wire


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_directory_of_roots_is_given_to_root_alone(connect: Connect, ground: Path, way: str) -> None:
    root, ada = connect(0, way), connect(ADA, way)
    opened(root, "roots", cwd=str(ground / "root"))
    assert root.run("open('secret').read()", session="roots").value == "'for its owner'"
    for folder in ("root", "bob", "ada/../root"):
        refused = ada.ask("new-session", name="adas", cwd=f"{ground}/{folder}")
        assert refused.status == REFUSED, refused.messages
        assert "uid:1001 may enter" in refused["err"]
    assert ada.run("1", session="adas", cwd=str(ground / "root")).status == REFUSED


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_what_is_written_in_a_users_directory_is_that_users(connect: Connect, ground: Path, way: str) -> None:
    ada = opened(connect(ADA, way), "adas", cwd=str(ground / "ada"))
    assert ada.run("open('own.py').read()", session="adas").value == "'own = 1'"
    assert ada.run(f"open('made-{way}', 'w').write('x')", session="adas").value == "1"
    made = (ground / f"ada/made-{way}").stat()
    assert (made.st_uid, made.st_gid) == (ADA, ADA)


def test_files_of_others_in_a_users_directory_stay_theirs(connect: Connect, ground: Path) -> None:
    ada, root = opened(connect(ADA), "adas", cwd=f"{ground}/ada"), opened(connect(0), "roots", cwd=f"{ground}/root")
    for name in ("roots", "bobs", "link", "hard", "closed/inner", "way/secret"):
        assert fault(ada.run(f"open({name!r}).read()", session="adas")) in CLOSED, name
    for name in ("roots", "shown", "link", "hard", "closed/new"):
        assert fault(ada.run(f"open({name!r}, 'a')", session="adas")) in CLOSED, name
    for code in ("os.chmod('shown', 0o777)", "os.chown('own.py', 0, 0)", "os.chmod('closed', 0o777)"):
        assert fault(ada.run(f"import os; {code}", session="adas")) in ("PermissionError", "OSError"), code
    assert root.run("open('secret').read()", session="roots").value == "'for its owner'"
    for name, mode in (("shown", "r"), ("everybodys", "a"), ("bobs", "a"), ("own.py", "a")):  # as ada may
        assert ada.run(f"open({name!r}, {mode!r}).close()", session="adas").status == ["done"], name
    assert (
        ada.run("import os; os.stat('shown').st_uid, os.stat('own.py').st_uid", session="adas").value == "(65534, 1000)"
    )


def test_a_directory_of_a_group_is_open_to_its_members_alone(connect: Connect, ground: Path) -> None:
    """Groups are the user database's over tcp, and the process's own at a Unix socket."""
    ada = opened(connect(ADA), "adas", cwd=f"{ground}/team")
    assert ada.run("open('made', 'w').write('x')", session="adas").value == "1"
    made = (ground / "team/made").stat()
    assert (made.st_uid, made.st_gid) == (ADA, TEAM)
    assert connect(BOB).ask("new-session", name="bobs", cwd=f"{ground}/team").status == REFUSED


@pytest.mark.parametrize("way", ["new-session", "env activate", "eval"])
def test_an_environment_is_opened_with_the_askers_rights(connect: Connect, ground: Path, way: str) -> None:
    def activate(wire: Wire, name: str, path: str) -> Answer:
        if way == "new-session":
            return wire.ask("new-session", name=name, runtime=path)
        if way == "eval":
            return wire.run("1", session=name, runtime=path)
        wire.ask("new-session", name=name)
        return wire.ask("env", session=name, action="activate", path=path)

    ada, bob, root = connect(ADA), connect(BOB), connect(0)
    for wire, name, path in ((ada, "a", "root/env"), (bob, "b", "ada/env"), (ada, "c", "ada/way/env")):
        refused = activate(wire, name, f"{ground}/{path}")
        assert refused.status == ["done", "error", "environment-failed"], refused.messages
        wire.ask("close", session=name)
    for wire, name, path in ((ada, "d", "ada/env"), (root, "e", "root/env")):
        done = activate(wire, name, f"{ground}/{path}")
        assert done.status == ["done"], done.messages
        assert wire.run("import sys; sys.prefix", session=name).value == repr(f"{ground}/{path}")


def test_a_file_is_loaded_with_the_askers_rights(connect: Connect, ground: Path) -> None:
    ada, bob = connect(ADA), connect(BOB)
    for wire, name in ((ada, "adas"), (bob, "bobs")):
        opened(wire, name)
    assert ada.ask("load-file", session="adas", file=f"{ground}/ada/own.py").status == ["done"]
    assert ada.run("own", session="adas").value == "1"
    for path in ("bob/own.py", "root/secret", "ada/link", "ada/roots", "root/absent"):
        for op in ("load-file", "reload-file"):
            refused = ada.ask(op, session="adas", file=f"{ground}/{path}")
            assert refused.status == ["done", "error", "path-not-allowed"], (path, refused.messages)
    assert bob.ask("load-file", session="bobs", file=f"{ground}/bob/own.py").status == ["done"]


def test_who_has_no_entry_in_the_user_database_comes_by_a_unix_socket(connect: Connect, ground: Path) -> None:
    refused = connect(EVE).ask("new-session", name="eves", cwd=f"{ground}/eve")
    assert refused.status == REFUSED
    assert "not in this machine's user database" in refused["err"]
    assert connect(EVE).run("6*7", session="bare").value == "42"


def test_after_a_hand_over_directories_are_opened_for_the_new_owner(connect: Connect, ground: Path) -> None:
    root, ada = connect(0), connect(ADA)
    opened(root, "given", cwd=f"{ground}/root")
    opened(root, "kept", cwd=f"{ground}/ada")
    for name in ("given", "kept"):
        assert root.ask("hand-over", session=name, who="uid:1001").status == ["done"]
    ids = {each["name"]: each["session"] for each in ada.ask("ls-sessions")["sessions"]}
    lost = ada.ask("reset", session=ids["given"])
    assert lost.status == REFUSED, lost.messages
    assert "uid:1001 may enter" in lost["err"]
    assert ada.ask("reset", session=ids["kept"]).status == ["done"]
    assert ada.run("open('roots').read()", session=ids["kept"])["ex"]["type"] == "PermissionError"
    assert ada.run("open('after', 'w').write('x')", session=ids["kept"]).value == "1"
    assert (ground / "ada/after").stat().st_uid == ADA


def test_a_clone_of_anothers_session_is_opened_for_who_asked_for_it(connect: Connect, ground: Path) -> None:
    root, ada = connect(0), connect(ADA)
    opened(root, "source", cwd=f"{ground}/root")
    root.run("x = 1", session="source")
    assert root.ask("share", session="source", who="uid:1001", level="write").status == ["done"]
    source = next(each["session"] for each in root.ask("ls-sessions")["sessions"] if each["name"] == "source")
    refused = ada.ask("clone", session=source, name="copy")
    assert refused.status[1] == "error", refused.messages
    assert "uid:1001 may enter" in refused["err"]
    assert root.ask("clone", session="source", name="copy").status == ["done"]
    assert ada.run("open('secret').read()", session=source).value == "'for its owner'"  # a writer acts as the owner
