"""A broker that several users share, with the settings that it has by default, and clients of it that are other users.

As root the users are ones of their own, let in at a socket that is passed to the broker as systemd would. As an
ordinary user all of them are that user: the tables say so.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import ours, procs

CALM_UID, NOISY_UID = 2001, 2002
# What systemd does for a service with a socket: descriptor 3 listens, and a variable says whose it is.
_PASS_ON = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"
)


class SharedBroker(NamedTuple):
    """A running broker: the addresses that everybody may come to, and its own user's."""

    zmq: str
    lines: str  # lines+tcp://
    own: str
    pid: int
    log: Path


def users() -> str:
    """Return, for a table, whether the clients are users of their own."""
    return "clients are users of their own" if os.getuid() == 0 else "all clients are the broker's own user"


def become_user(uid: int) -> None:
    """Be this user from here on, where we may. What is imported later has to be readable for it."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


@contextmanager
def broker(settings: Sequence[str] = (), wrap: Sequence[str] = ()) -> Iterator[SharedBroker]:
    """Start a broker with default settings but for these; `wrap` starts it (`prlimit …`). Ended on every way out."""
    path = Path(tempfile.mkdtemp(prefix="replb-", dir="/tmp"))
    state = path / "state"
    state.mkdir(mode=0o700)
    (state / "config.toml").write_text(ours.ALLOW_UNSANDBOXED)
    own = f"ipc://{state}/run/b.sock"
    command = [sys.executable, "-m", "replctl", "serve", "--json", "--endpoint", own, "--tcp", "127.0.0.1:0"]
    command += ["--config", str(state / "config.toml")]
    command += [word for pair in settings for word in ("--set", pair)]
    env = {"REPLCTL_STATE_DIR": str(state)}
    try:
        if os.getuid() == 0:
            with _open_socket(path) as listener:
                env["LISTEN_FDS"] = "1"
                argv = [*wrap, sys.executable, "-c", _PASS_ON, str(listener.fileno()), *command]
                fds = (listener.fileno(),)
                process = procs.start(argv, env, state / "log", pass_fds=fds, end_signal=procs.END_BROKER)
                url = f"ipc://{listener.getsockname()}"
        else:
            process = procs.start([*wrap, *command], env, state / "log", end_signal=procs.END_BROKER)
            url = own
        try:
            yield SharedBroker(url, _line_endpoint(process, state / "log"), own, process.pid, state / "log")
        finally:
            procs.stop(process, procs.END_BROKER)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _open_socket(path: Path) -> Iterator[socket.socket]:
    """Open a socket that everybody may connect to."""
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "shared.sock"))
        os.chmod(path / "shared.sock", 0o666)
        listener.listen(100)
        yield listener


def _line_endpoint(process: subprocess.Popen[str], log: Path) -> str:
    try:
        listening = msgspec.json.decode(procs.read_line(process))["listening"]
    except EOFError:
        raise RuntimeError(f"the broker did not start: {log.read_text()}") from None
    return str(next(url for url in listening if url.startswith("lines+tcp://")))
