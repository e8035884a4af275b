"""Background start of a broker when none is running; of many concurrent callers, one starts it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec

from replctl.client.address import directory_problem, is_listening
from replctl.client.errors import ReplError
from replwire import paths
from replwire.flock import try_flock
from replwire.private_directories import make_private_directory

START_SECONDS = 20.0  # time until the broker is ready
LOCK_SECONDS = 25.0  # time for another caller's start: its own deadline and some margin
MAX_LOG_BYTES = 1024 * 1024  # a larger log is rotated to broker.log.1 at the next start
TAIL_BYTES = 2000


class BrokerReady(msgspec.Struct, frozen=True):
    """A broker's ready message. `lost_sessions` names those lost with the previous broker, for `lost_cause`."""

    pid: int
    listening: list[str] = []
    lost_sessions: list[str] = msgspec.field(default_factory=list, name="lost")
    lost_cause: str = msgspec.field(default="the previous broker ended unexpectedly", name="lost-cause")
    warnings: list[str] = []


def ensure_broker(endpoint: str, environ: Mapping[str, str]) -> BrokerReady | None:
    """Start a broker at this ipc endpoint if none listens. Returns its ready message, or None if one listened.

    Raises:
        ReplError: `no-broker` if the broker did not start; the message includes the end of its log.
    """
    path = paths.ipc_path(endpoint)
    if path is None or path.startswith("@"):
        raise ReplError("no-broker", f"no broker is running at {endpoint}; start one there: replctl serve")
    state = paths.state_dir(environ)
    _ensure_private_directory(state)  # first: it may contain the other, and would then be created with a default mode
    _ensure_private_directory(os.path.dirname(path))
    try:
        return _start_under_lock(endpoint, path, log_file(environ))
    except OSError as error:
        why = f"{error.filename or state}: {error.strerror}"
        raise ReplError("no-broker", f"cannot start a broker: {why}") from None


def log_file(environ: Mapping[str, str]) -> str:
    """Return the path of the log of a broker that a command starts."""
    return os.path.join(paths.state_dir(environ), "broker.log")


def _start_under_lock(endpoint: str, path: str, log_path: str) -> BrokerReady | None:
    lock = os.open(path + ".start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not _acquire_lock(lock, endpoint):
            return None
        if is_listening(endpoint):  # it was started between the first check and the lock
            return None
        try:
            return _launch(endpoint, log_path)
        except ReplError:
            if is_listening(endpoint):  # a running broker has recreated its vanished socket
                return None
            raise
    finally:
        os.close(lock)  # releases the lock; the file stays, or two callers could lock two different files


def _ensure_private_directory(directory: str) -> None:
    try:
        make_private_directory(directory)
    except OSError as error:
        raise ReplError("no-broker", f"cannot create {directory}: {error.strerror}") from None
    if (why := directory_problem(directory, os.getuid())) is not None:
        raise ReplError("no-broker", f"cannot start a broker: {why}")


def _acquire_lock(lock: int, endpoint: str) -> bool:
    """Take the lock and return True, or return False if it stays taken and a broker listens."""
    if try_flock(lock, LOCK_SECONDS):
        return True
    if is_listening(endpoint):
        return False
    raise ReplError("no-broker", f"another process is starting a broker at {endpoint} and has not finished")


def _launch(endpoint: str, log_path: str) -> BrokerReady:
    with open(_rotate_log(log_path), "ab") as log:
        begin = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "replctl", "serve", "--background", "--endpoint", endpoint],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env=_absolute_environment(),
        )
    assert child.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    with child.stdout as pipe:
        line = read_line(pipe.fileno(), deadline)
    # `serve --background` forks and its first process exits at once. The broker is not our child, so the
    # calling program is left with neither a zombie nor a warning.
    try:
        return msgspec.json.decode(line, type=BrokerReady)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        _kill_group(child.pid)
        why = "was not ready in time" if time.monotonic() >= deadline else "exited before it was ready"
        raise ReplError("no-broker", f"the broker {why}; {log_path} says:\n{log_tail(log_path, begin)}") from None
    finally:
        child.wait()


def _absolute_environment() -> dict[str, str]:
    """Return the environment with absolute paths, because the broker starts in another directory."""
    env = dict(os.environ)
    for name in ("REPLCTL_STATE_DIR", "REPLCTL_CONFIG"):
        if env.get(name):
            env[name] = os.path.abspath(env[name])
    if roots := [os.path.abspath(root) for root in env.get("PYTHONPATH", "").split(os.pathsep) if root]:
        env["PYTHONPATH"] = os.pathsep.join(roots)
    return env


def _rotate_log(path: str) -> str:
    try:
        if os.path.getsize(path) > MAX_LOG_BYTES:
            os.replace(path, path + ".1")
    except FileNotFoundError:
        pass
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return path


def read_line(fd: int, deadline: float) -> bytes:
    """Read up to the first newline, the end of file or the deadline."""
    got = b""
    poll = select.poll()  # `select` fails beyond descriptor 1023, and the calling program may have more
    poll.register(fd, select.POLLIN)
    while not got.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return got
        chunk = os.read(fd, 65536)
        if not chunk:
            return got
        got += chunk
    return got


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def log_tail(path: str, begin: int) -> str:
    with open(path, "rb") as log:
        log.seek(max(begin, os.path.getsize(path) - TAIL_BYTES))
        return log.read().decode("utf-8", "replace").strip() or "(nothing)"
