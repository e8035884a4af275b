"""Projects that are hostile before anybody opens them: what is asked of them must not wait, grow or end a worker."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import uid_of
from kit import BrokerProcess, Wire
from live_processes import read_each
from replwire.policy import Policy
from replworker.sandbox.bounded_read import MAX_ENTRIES, Oversized
from replworker.sandbox.runtime_paths import find_runtime_paths
from replworker.sandbox.workspace import DirectoryRefused, check_directory

MOST_GROWTH = 64 << 20

# Speaks the frames of a runtime that it is not: node's snapshots come through the worker, python's through a descriptor.
LIAR = r"""
import array, json, os, socket, struct, sys
control, transfer = socket.socket(fileno=3), socket.socket(fileno=6)
def say(**event):
    body = json.dumps(event).encode()
    control.sendall(struct.pack("!I", len(body)) + body)
def hear():
    size = struct.unpack("!I", control.recv(4, socket.MSG_WAITALL))[0]
    return json.loads(control.recv(size, socket.MSG_WAITALL))
say(t="ready", runtime="node", version="1", implementation="lies", executable="/x", pid=2, can=["dump", "restore"])
while True:
    asked = hear()
    n = asked["n"]
    if asked["op"] == "assign":
        say(t="assigned", n=n, error=None)
    elif asked["op"] == "eval":
        say(t="result", n=n, outcome="ok", value="here")
    elif asked["op"] == "dump":
        _, ancillary, _, _ = transfer.recvmsg(1, socket.CMSG_SPACE(4))
        fd = array.array("i", ancillary[0][2])[0]
        for _ in range(120):
            os.write(fd, b"x" * (1 << 20))
        say(t="dumped", n=n, count=1, bytes=1)
    elif asked["op"] == "restore":
        say(t="dumped", n=n, count=1)
"""


@pytest.fixture
def project(who: str) -> Iterator[Path]:
    """A directory of the broker's user, with an environment in it."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-hostile-", dir="/tmp"))
    packages = directory / ".venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (directory / ".venv/bin").mkdir()
    (directory / ".venv/bin/python").symlink_to(os.path.realpath("/usr/bin/python3"))
    (directory / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    own(directory, who)
    yield directory
    shutil.rmtree(directory)


def own(directory: Path, who: str) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, uid_of(who), uid_of(who), follow_symlinks=False)


def largest(broker: BrokerProcess) -> int:
    """The most memory that a process of the broker's ever had, in bytes."""
    texts = read_each(broker.process_tree(), "status", at_least=4)
    peaks = [text.partition(b"VmHWM:")[2].split() for text in texts.values()]  # a zombie has none
    return max(int(words[0]) * 1024 for words in peaks if words)


def endless(packages: Path) -> None:
    (packages / "x.pth").symlink_to("/dev/zero")


def swollen(packages: Path) -> None:
    with (packages.parents[2] / "pyvenv.cfg").open("a") as file:
        file.truncate(1 << 33)  # a hole


@pytest.mark.parametrize("spoil", [endless, swollen])
def test_files_without_end_in_an_environment_cost_the_worker_nothing(
    wire: Wire, broker: BrokerProcess, project: Path, who: str, spoil: object
) -> None:
    assert wire.run("1+1", session="other").value == "2"
    before = largest(broker)
    spoil(project / ".venv/lib/python3.11/site-packages")  # type: ignore[operator]
    own(project, who)
    answer = wire.ask("new-session", name="s", runtime=str(project), cwd=str(project))
    assert answer.status in (["done"], ["done", "error", "environment-failed"]), answer.messages
    assert "20000 ms" not in str(answer.last)  # nobody waited for it to end
    assert largest(broker) - before < MOST_GROWTH
    assert wire.run("1+1", session="other").value == "2"


def test_a_snapshot_that_is_forged_is_refused_before_anybody_reads_it(
    wire: Wire, broker: BrokerProcess, project: Path, who: str
) -> None:
    (project / ".venv/liar.py").write_text(LIAR)
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").write_text(f"#!/bin/sh\nexec /usr/bin/python3 {project}/.venv/liar.py\n")
    (project / ".venv/bin/python").chmod(0o755)
    own(project, who)
    opened = wire.ask("new-session", name="s", runtime=str(project), cwd=str(project))
    assert opened.status == ["done"], opened.messages
    assert wire.run("x").value == "here"
    before = largest(broker)
    cloned = wire.ask("clone", session="s", name="copy")
    assert cloned.status == ["done", "error", "clone-failed"], cloned.messages
    assert "the snapshot is longer than" in cloned["err"]
    assert largest(broker) - before < MOST_GROWTH
    assert not list((broker.directory / "snapshots").iterdir())


@pytest.mark.parametrize(
    "path", ["/tmp/a\0b", "/proc/1/root/etc", "/proc/self/fd/0", "/proc", "/dev/fd/3", "/" + "x" * 5000, ""]
)
@pytest.mark.parametrize("runtime", ["python", "node", "bash"])
def test_what_is_no_path_is_an_invalid_request_for_every_field(wire: Wire, path: str, runtime: str) -> None:
    for op in ("new-session", "eval"):
        more = {"code": "1", "if_missing": "create", "session": "s"} if op == "eval" else {"name": "s"}
        refused = wire.ask(op, cwd=path, runtime=runtime, **more)
        assert refused.status == ["done", "error", "invalid-request"], refused.messages
        assert refused["err"].startswith("cwd: ")
    assert wire.ask("ls-sessions")["sessions"] == []


@pytest.mark.parametrize("path", ["/tmp/a\0b", "/proc/1/root/usr", "/dev/fd/3"])
def test_what_is_no_path_is_no_environment_and_no_file(wire: Wire, path: str) -> None:
    wire.run("x = 1")
    for asked in (
        wire.ask("new-session", name="t", runtime=path),
        wire.ask("env", session="s", action="activate", path=path),
        wire.ask("env", session="s", action="instantiate", path=path),
    ):
        assert asked.status == ["done", "error", "invalid-request"], asked.messages
    assert wire.run("x").value == "1"


def test_a_directory_that_leads_through_the_kernels_own_links_is_refused(wire: Wire, project: Path) -> None:
    (project / "way").symlink_to("/proc/self/cwd")
    refused = wire.ask("new-session", name="s", cwd=f"{project}/way")
    assert refused.status == ["done", "error", "invalid-request"]
    assert "goes through /proc" in refused["err"]
    with pytest.raises(DirectoryRefused, match="goes through /proc"):
        check_directory(Policy(), f"{project}/way", "/nowhere")


def test_an_environment_is_looked_at_within_bounds(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    packages = tmp_path / "lib/python3.11/site-packages"
    python.parent.mkdir()
    packages.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    (packages / "many.pth").write_text("".join(f"{directory(tmp_path, number)}\n" for number in range(101)))
    with pytest.raises(Oversized, match="more than 100 directories"):
        find_runtime_paths(str(python))
    (packages / "many.pth").write_bytes(b"/" * (1 << 20))
    with pytest.raises(Oversized, match="longer than 65536 bytes"):
        find_runtime_paths(str(python))
    (packages / "many.pth").unlink()
    for number in range(MAX_ENTRIES + 1):
        (packages / str(number)).touch()
    with pytest.raises(Oversized, match="more than 20000 entries"):
        find_runtime_paths(str(python))


def test_what_is_no_regular_file_in_an_environment_is_not_waited_for(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    packages = tmp_path / "lib/python3.11/site-packages"
    python.parent.mkdir()
    packages.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    os.mkfifo(packages / "x.pth")
    os.mkfifo(tmp_path / "pyvenv.cfg")
    (packages / "y.pth").symlink_to("/dev/zero")
    (packages / "z.pth").symlink_to("/dev/tty")
    assert find_runtime_paths(str(python)).paths == (str(tmp_path),)


def directory(base: Path, number: int) -> Path:
    (made := base / f"developed/{number}").mkdir(parents=True)
    return made


def test_environments_that_build_on_one_another_come_to_an_end(tmp_path: Path) -> None:
    for number in range(20):
        home = tmp_path / str(number)
        (home / "bin").mkdir(parents=True)
        shutil.copy("/bin/true", home / "bin/python3")
        assert os.stat(home / "bin/python3").st_mode & stat.S_IXUSR
        (home / "pyvenv.cfg").write_text(f"home = {tmp_path}/{number + 1}/bin\n")
    with pytest.raises(Oversized, match="is based on more than 16"):
        find_runtime_paths(str(tmp_path / "0/bin/python3"))
