"""A root broker opens what a client names with that client's rights: directories, environments, files."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from attack_targets import end
from kit import BrokerProcess, CollectedReplies, LineWire, Wire, close_sessions, free_tcp
from replctl import Client, ReplError
from replworker.sandbox.report import SandboxReport
from unix_users import ADA, BOB, EVE, PEOPLE, TEAM, connect_as, file, make_directory, user

pytestmark = pytest.mark.needs_root("its broker, and to be another user")
REFUSED = ["done", "error", "invalid-request"]
CLOSED = ("PermissionError", "FileNotFoundError")
Connect = Callable[..., LineWire]


@pytest.fixture(scope="module")
def ground(report: SandboxReport) -> Iterator[Path]:
    """Directories of root's, ada's and bob's."""
    assert report.ok
    ground = Path(tempfile.mkdtemp(prefix="rpl-ground-", dir="/tmp"))
    ground.chmod(0o755)
    file(make_directory(ground, "root", 0) / "secret", 0)
    for name, uid in (("ada", ADA), ("bob", BOB), ("eve", EVE)):
        file(make_directory(ground, name, uid) / "own.py", uid, text="own = 1")
    make_directory(ground, "team", 0, 0o2770, TEAM)
    file(ground / "ada/roots", 0)
    file(ground / "ada/shown", 0, 0o644)
    file(ground / "ada/bobs", BOB, 0o620)
    os.chown(ground / "ada/bobs", BOB, ADA)  # its group may write and not read
    file(ground / "ada/everybodys", 0, 0o666)
    file(make_directory(ground / "ada", "closed", 0) / "inner", 0, 0o644)
    os.symlink(ground / "root/secret", ground / "ada/link")
    os.symlink(ground / "root", ground / "ada/way")
    os.link(ground / "root/secret", ground / "ada/hard")
    environment(ground / "ada/env", ADA)
    environment(ground / "root/env", 0)
    yield ground
    shutil.rmtree(ground)


def identities(*names: str) -> str:
    return "".join(f'[[identities]]\nname = "{name}"\nuser = "ada"\n' for name in names)


@pytest.fixture(scope="module")
def broker(ground: Path) -> Iterator[BrokerProcess]:
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    broker = BrokerProcess(
        directory,
        "limits.rate-limit-per-min=0",
        "broker.tcp=127.0.0.1:0",
        "broker.unix=/DIRECTORY/run/lines.sock",
        f'session.load-paths=["{ground}"]',
        sandbox=True,
        through=[sys.executable, PEOPLE],
        keys=["mapped", "bob"],
        more_endpoints=[free_tcp()],
        config=identities("mapped", "mapped-token"),
    )
    for name in ("mapped-token", "bob-token"):
        command = [sys.executable, "-m", "replctl", "keys", "token", name]
        subprocess.run(command, env=broker.environ, cwd=directory, check=True, stdout=subprocess.DEVNULL, timeout=20)
    broker.listening["curve"] = broker.ready["listening"][1]
    broker.listening["tcp"] = next(url for url in broker.ready["listening"] if url.startswith("lines+tcp"))
    for path, mode in (
        (directory, 0o711),
        (directory / "run", 0o711),
        (directory / "run/lines.sock", 0o666),
        (directory / "run/b.sock", 0o666),
    ):
        path.chmod(mode)
    yield broker
    end(broker)
    assert "internal error" not in broker.log_text() if (broker.directory / "log").exists() else True


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Connect]:
    """A connection of a user's, by `tcp` or `unix`; sessions that it opened are closed with it."""
    with ExitStack() as stack:

        def connect(uid: int, way: str = "tcp", groups: tuple[int, ...] = ()) -> LineWire:
            wire = connect_as(broker.listening[way], uid, groups)
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


def fault(answer: CollectedReplies) -> str | None:
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
    for directory in ("root", "bob", "ada/../root"):
        refused = ada.ask("new-session", name="adas", cwd=f"{ground}/{directory}")
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


def test_a_directory_that_is_swapped_while_it_is_asked_for_is_never_roots(connect: Connect, ground: Path) -> None:
    """Between the look and the mount stands another: a link, or root's directory itself, which lies in ada's."""
    file(make_directory(ground / "ada", "turn", ADA) / "mark", ADA)
    file(make_directory(ground / "ada", "other", 0, 0o700) / "mark", 0)
    (ground / "ada/link-to-root").symlink_to(ground / "root")
    ada, stop, seen = connect(ADA), threading.Event(), set()

    def swap() -> None:
        while not stop.is_set():
            for other in ("other", "link-to-root"):
                exchange(ground / "ada/turn", ground / "ada" / other)
                exchange(ground / "ada/turn", ground / "ada" / other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(40):
            answer = ada.ask("new-session", name="turn", cwd=f"{ground}/ada/turn")
            seen.add(answer.status[0] if len(answer.status) == 1 else answer.status[1])
            if answer.status == ["done"]:
                result = ada.run(
                    "import os; open('secret' if os.path.lexists('secret') else 'mark').read()", session="turn"
                )
                assert result.value == "'for its owner'" or fault(result) in CLOSED, result.messages
                if result.value is not None:
                    assert ada.run("os.stat('mark').st_uid", session="turn").value == "1000"  # ada's own
                ada.ask("close", session="turn")
    finally:
        stop.set()
        thread.join()
    assert seen == {"done", "error"}


def exchange(one: Path, other: Path) -> None:
    """Put one in the other's place, at once."""
    libc = ctypes.CDLL(None)
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0


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
def test_an_environment_is_opened_with_the_owners_rights(connect: Connect, ground: Path, way: str) -> None:
    def activate(wire: Wire, name: str, path: str) -> CollectedReplies:
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


def test_a_file_is_loaded_with_the_owners_rights(connect: Connect, ground: Path) -> None:
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


def test_after_a_transfer_directories_are_opened_for_the_new_owner(connect: Connect, ground: Path) -> None:
    root, ada = connect(0), connect(ADA)
    opened(root, "given", cwd=f"{ground}/root")
    opened(root, "kept", cwd=f"{ground}/ada")
    for name in ("given", "kept"):
        assert root.ask("transfer", session=name, who="uid:1001").status == ["done"]
    ids = {each["name"]: each["session"] for each in ada.ask("ls-sessions")["sessions"]}
    lost = ada.ask("reset", session=ids["given"])
    assert lost.status == REFUSED, lost.messages
    assert "uid:1001 may enter" in lost["err"]
    assert ada.ask("reset", session=ids["kept"]).status == ["done"]
    assert ada.run("open('roots').read()", session=ids["kept"])["ex"]["type"] == "PermissionError"
    assert ada.run("open('after', 'w').write('x')", session=ids["kept"]).value == "1"
    assert (ground / "ada/after").stat().st_uid == ADA


def test_a_clone_of_anothers_session_has_nothing_that_the_other_named(connect: Connect, ground: Path) -> None:
    """A snapshot is code, and would run with the rights of who clones."""
    root, ada = connect(0), connect(ADA)
    source = opened(root, "source", cwd=f"{ground}/root").ask("info", session="source")["info"]["session"]
    root.run("x = 1", session="source")
    assert root.ask("share", session="source", who="uid:1001", level="write").status == ["done"]
    copied = ada.ask("clone", session=source, name="copy")
    assert copied.status == ["done"], copied.messages
    assert "neither its directory nor its environment" in copied["notice"]
    assert ada.run("x", session="copy").value == "1"
    assert ada.ask("info", session="copy")["info"]["cwd"] is None
    assert fault(ada.run(f"open('{ground}/root/secret')", session="copy")) == "FileNotFoundError"
    own = root.ask("clone", session="source", name="own")
    assert own.get("notice") is None
    assert root.run("open('secret').read()", session="own").value == "'for its owner'"
    assert ada.run("open('secret').read()", session=source).value == "'for its owner'"  # a writer acts as the owner


def test_nobody_gets_roots_rights_by_giving_root_a_session(connect: Connect, ground: Path) -> None:
    root, ada = connect(0), connect(ADA)
    asked = {"cwd": f"{ground}/root", "cwd_needed": False, "runtime": f"{ground}/ada/env"}
    assert ada.run("1", session="bait", **asked).value == "1"
    bait = ada.ask("info", session="bait")["info"]["session"]
    for who in ("uid:1001", "*"):
        assert ada.ask("share", session="bait", who=who, level="write").status == ["done"]
    assert ada.ask("transfer", session="bait", who="uid:0")["offered-to"] == "uid:0"
    running = ada.send("eval", session="bait", code="import time; time.sleep(1)")
    ada.ask("ping")
    assert root.ask("transfer", session=bait, who="uid:0").status == ["done", "error", "busy"]
    assert ada.answer(running).status == ["done"]
    given = root.ask("transfer", session=bait, who="uid:0")
    assert "runs the broker's own python" in given["notice"]
    for op in ("reset", "info", "eval"):
        assert ada.ask(op, session=bait, **({"code": "1"} if op == "eval" else {})).status[-1] == "session-not-found"
    assert root.ask("reset", session=bait).status == ["done"]
    assert root.run("open('secret').read()", session=bait).value == "'for its owner'"  # root's, for root alone
    assert root.run("import sys; sys.prefix", session=bait).value != repr(f"{ground}/ada/env")
    assert root.ask("info", session=bait)["info"]["environment"] is None


def test_a_process_has_the_groups_that_it_connected_with(connect: Connect, broker: BrokerProcess, ground: Path) -> None:
    """At a Unix socket the kernel tells them: who gave a group up does not get it back, who has one may use it."""
    without, eve = connect(ADA, "unix"), connect(EVE, "unix", (TEAM,))
    refused = without.ask("new-session", name="w", cwd=f"{ground}/team")
    assert refused.status == REFUSED, refused.messages
    opened(eve, "e", cwd=f"{ground}/team")
    assert eve.run("open('eves', 'w').write('x')", session="e").value == "1"
    assert (ground / "team/eves").stat().st_uid == EVE
    opened(connect(EVE, "unix"), "own", cwd=f"{ground}/eve")
    with user(EVE, (TEAM,)), Wire(broker.endpoint) as wire:
        made = wire.ask("new-session", name="z", cwd=f"{ground}/team")
        assert made.status == ["done"], made.messages
        wire.ask("close", session="z")


@pytest.mark.parametrize("named", ["bob", "mapped"])
def test_a_token_or_key_acts_as_the_user_that_the_config_names(broker: BrokerProcess, ground: Path, named: str) -> None:
    """`mapped` is ada, `bob` nobody, although the machine has a user of this name."""
    line = LineWire(broker.listening["tcp"])
    token = (broker.directory / f"{named}-token.token").read_text().strip()
    assert line.ask("hello", token=token)["identity"] == f"{named}-token"
    asked = [
        lambda wire: wire.ask("new-session", name="n", cwd=f"{ground}/ada"),
        lambda wire: wire.ask("new-session", name="e", runtime=f"{ground}/ada/env"),
        lambda wire: wire.ask("load-file", session="bare", file=f"{ground}/ada/own.py"),
    ]
    with Client(broker.listening["curve"], key=str(broker.directory / f"{named}.key"), start=False) as client:
        acts_as = client.describe().acts_as
        assert client.eval("6*7", session="bare").value == "42"
        try:
            client.new("keyed", cwd=f"{ground}/ada")
            message = "done"
        except ReplError as error:
            message = error.message
    opened(line, "bare")
    answers = [ask(line) for ask in asked]
    info = line.ask("info", session="bare")["info"]["acts-as"]
    shown = line.run("6*7", session="n", cwd_needed=False, cwd=f"{ground}/ada")
    close_sessions(line)
    line.close()
    if named == "mapped":
        assert (acts_as, info, message, shown.value) == ("ada", "ada", "done", "42")
        assert [answer.status for answer in answers] == [["done"]] * 3, [answer.messages for answer in answers]
        return
    assert (acts_as, info, shown.value) == ("nobody", "nobody", "42")
    assert [answer.status[1] for answer in answers] == ["error"] * 3
    for text in (message, *(answer["err"] for answer in answers)):
        assert "[[identities]]" in text
        assert "is not a user of this machine" in text


SMALL = {"pids": 16, "memory_bytes": 128 << 20}
CODE = {  # what one session tries on another: kill it, trace it, read it, and take what it needs
    "find": "import os; [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 1]",
    "kill": "import os, signal\ntry: os.kill(-1, 9)\nexcept ProcessLookupError: pass",  # its own checkpoints at most
    "signal": "try: os.kill({pid}, 9)\nexcept ProcessLookupError: told = 'gone'\ntold",
    "trace": "import ctypes; ctypes.CDLL(None, use_errno=True).ptrace(16, {pid}, 0, 0)",
    "read": "try: told = open('/proc/{pid}/environ').read()\nexcept (FileNotFoundError, ProcessLookupError): told = 'gone'\ntold",
    "memory": "try: told = open('/proc/{pid}/mem', 'r+b')\nexcept (FileNotFoundError, ProcessLookupError): told = 'gone'\ntold",
}


def test_two_sessions_of_one_user_cannot_reach_or_starve_each_other(connect: Connect, ground: Path) -> None:
    wires = [opened(connect(ADA), f"s{number}", cwd=f"{ground}/ada", **SMALL) for number in range(2)]
    attacker, victim = wires
    pid = victim.ask("info", session="s1")["info"]["pid"]
    uids = {os.stat(f"/proc/{each.ask('info', session=f's{n}')['info']['pid']}").st_uid for n, each in enumerate(wires)}
    assert len(uids) == 2  # and neither is ada's
    assert all(61_000 <= uid < 62_000 for uid in uids)
    results = {name: attacker.run(code.format(pid=pid), session="s0").value for name, code in CODE.items()}
    assert results["signal"] == results["read"] == results["memory"] == "'gone'"
    assert victim.ask("info", session="s1")["info"]["pid"] == pid
    assert results["trace"] == "-1"
    full = attacker.run(
        "import os, time\nmade = []\ntry:\n    while len(made) < 200:\n        child = os.fork()\n"
        "        if not child: time.sleep(60)\n        made.append(child)\nexcept OSError: pass\nlen(made) < 20",
        session="s0",
    )
    assert full.value == "True"
    filled = attacker.run(
        "held = []\ntry:\n    while len(held) < 500: held.append(bytes([1]) * (1 << 20))\nfinally: held.clear()",
        session="s0",
    )
    assert filled["ex"]["type"] == "MemoryError"
    assert victim.run("import os; child = os.fork() or os._exit(0); os.waitpid(child, 0)[1]", session="s1").value == "0"
    assert victim.run("len(bytes([1]) * (64 << 20)) >> 20", session="s1").value == "64"
    attacker.run("[os.kill(each, 9) for each in made]", session="s0")  # the control: its own it reaches
    assert attacker.run("os.waitpid(made[0], 0)[1]", session="s0").value == "9"
