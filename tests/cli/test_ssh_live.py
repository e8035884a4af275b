"""`--endpoint ssh://HOST`, with a program in place of ssh that logs in to this machine."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replctl import ReplError
from replctl.client.ssh import SshTarget, parse_ssh
from stub_broker import TIMEOUT_S

if TYPE_CHECKING:
    from conftest import Shell

# It runs the command here, and forwards a socket as -L says, until the command ends.
FAKE_SSH = """#!{python}
import os, socket, subprocess, sys, threading
directory, words = os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]
with open(directory + "/calls", "a") as calls:
    print(os.getpid(), *words, file=calls)
if words[words.index("--") + 1] == "nowhere":
    sys.exit("ssh: Could not resolve hostname nowhere")

def pump(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

def serve(server, remote):
    while True:
        here = server.accept()[0]
        there = socket.socket(socket.AF_UNIX)
        there.connect(remote)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()

if "-L" in words:
    local, _, remote = words[words.index("-L") + 1].partition(":")
    server = socket.socket(socket.AF_UNIX)
    server.bind(local)
    server.listen()
    threading.Thread(target=serve, args=(server, remote), daemon=True).start()
code = subprocess.run(["sh", "-c", words[-1]]).returncode
os._exit(code)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with the program in place of ssh, and the installed `replctl`."""
    directory = tmp_path_factory.mktemp("ssh")
    program = directory / "ssh"
    program.write_text(FAKE_SSH.replace("{python}", sys.executable))
    program.chmod(0o755)
    return f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def calls(path: str) -> list[list[str]]:
    return [line.split() for line in (Path(path.partition(":")[0]) / "calls").read_text().splitlines()]


def is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("ssh://build", SshTarget(("--", "build"), None)),
        ("ssh://ada@build.test:2222", SshTarget(("-p", "2222", "-l", "ada", "--", "build.test"), None)),
        ("ssh://build/run/replctl.sock", SshTarget(("--", "build"), "/run/replctl.sock")),
        ("ssh://[::1]", SshTarget(("--", "::1"), None)),
    ],
)
def test_an_endpoint_names_login_and_socket(endpoint: str, target: SshTarget) -> None:
    assert parse_ssh(endpoint) == target


@pytest.mark.parametrize(
    "endpoint", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-l@h", "ssh://h:x", "ssh://h/a:b", "ssh://a b"]
)
def test_anything_else_is_refused_before_ssh_runs(endpoint: str) -> None:
    with pytest.raises(ReplError, match="not ssh://"):
        parse_ssh(endpoint)


def test_commands_work_over_ssh_and_start_a_broker_there(live: Shell, path: str) -> None:
    absent = live.run("ls", "--no-start", "--endpoint", "ssh://build", PATH=path)
    assert (absent.returncode, "no broker is running there" in absent.stderr) == (3, True)
    first = live.run("eval", "--endpoint", "ssh://build", "-s", "far", "x = 6\nx * 7", PATH=path)
    assert (first.returncode, first.stdout) == (0, "42\n")
    socket = f"{live.state}/run/broker.sock"
    again = live.run("eval", "--endpoint", f"ssh://ada@build{socket}", "-s", "far", "x", PATH=path)
    assert again.stdout == "6\n"
    assert calls(path)[-1][-5:] == ["build", "echo", "replctl-ready;", "exec", "cat"]
    assert live.run("eval", "-s", "far", "x").stdout == "6\n"


def test_a_host_that_is_not_there_is_reported(live: Shell, path: str) -> None:
    lost = live.run("ls", "--endpoint", "ssh://nowhere", PATH=path)
    assert lost.returncode == 3
    assert "Could not resolve hostname nowhere\n" in lost.stderr
    assert "cannot reach ssh://nowhere" in lost.stderr


def test_ssh_ends_with_a_command_that_is_killed(live: Shell, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live.run("ls")
    monkeypatch.setenv("PATH", path)
    process = live.start(
        "eval", "--endpoint", f"ssh://build{live.state}/run/broker.sock", "print('on', flush=True); input()", stdin=None
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    assert ready
    assert process.stdout.readline() == b"on\n"
    tunnel = int(calls(path)[-1][0])
    process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while is_running(tunnel):
        assert time.monotonic() < deadline
        time.sleep(0.02)
