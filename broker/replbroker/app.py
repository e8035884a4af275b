"""Builds a broker from its settings and runs it; nothing else builds."""

from __future__ import annotations

import fcntl
import gc
import os
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import zmq

from replbroker.core.broker import Core
from replbroker.core.state import Setup
from replbroker.launch.local import Local
from replbroker.roster import Roster
from replbroker.serve import Serve, Signals, log
from replbroker.transports.auth import Zap
from replbroker.transports.router import Clients
from replbroker.transports.workers import Workers
from replwire.config import Config, Loaded
from replwire.places import ipc_path

# What an interpreter may see of the broker's environment; `[session] pass-env` adds to it.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR")
_HANDOVER_S = 3.0  # a broker that was told to end may take this long; its successor waits
_LOOPBACK = ("127.", "localhost", "[::1]")
UNSANDBOXED = "sessions are not sandboxed: their code can do what this user can"


class StartError(Exception):
    """The broker cannot start here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The lock that makes this the only broker of an endpoint; the kernel gives it back when we die."""

    fd: int
    path: Path | None


def run(
    loaded: Loaded, endpoint: str, *, state_dir: str, background: bool, announce: Callable[[dict[str, object]], None]
) -> int:
    """Serve until told to stop; the exit code. `announce` is called once, when the broker can be reached.

    Raises StartError when the endpoint is taken, or may not be listened on.
    """
    config = loaded.config
    Path(state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    held = _hold(endpoint, patience_s=_HANDOVER_S if background else 0.0)
    roster = Roster(state_dir, endpoint)
    lost = roster.previous()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    signals = Signals()
    gc.freeze()  # what is loaded stays; a collection need not look at it again and again
    gc.set_threshold(20_000, 20, 100)
    try:
        with _Parts(config, endpoint, held, context, roster, background) as serve:
            if lost:
                serve.remember_lost(lost, "the broker that had it ended unexpectedly")
            roster.save([])
            log(f"listening on {endpoint}, pid {os.getpid()}")
            log(f"warning: {UNSANDBOXED}")
            announce({"listening": [endpoint], "pid": os.getpid(), "lost": lost, "warnings": [UNSANDBOXED]})
            log(f"ended: {serve.run(signals)}")
    finally:
        roster.remove()
        signals.close()
        context.destroy(linger=0)  # sockets of a broker that failed half-way would keep `term` waiting for ever
        _let_go(held)
    return 0


class _Parts:
    """The broker's parts, closed in the reverse order of their making."""

    def __init__(
        self, config: Config, endpoint: str, held: _Held, context: zmq.Context[zmq.Socket[bytes]], roster: Roster,
        background: bool,
    ) -> None:  # fmt: skip
        limits = config.limits
        inner = f"{endpoint}.workers" if held.path is not None else f"ipc://@replctl-{secrets.token_hex(16)}"
        self._zap = Zap(context)
        self._clients = _bind(lambda: Clients(context, endpoint, limits.max_message_bytes), endpoint)
        self._workers = _bind(lambda: Workers(context, inner), inner)
        env = _session_env(os.environ, config.session.pass_env)
        launcher = Local(inner, config.python.interpreter or sys.executable, env, limits)
        setup = Setup(
            limits=limits,
            warm_workers=config.broker.warm_workers,
            idle_exit_ms=config.broker.idle_exit_ms if background else 0,
            new_id=lambda: str(uuid.uuid4()),
            wall=lambda: time.time() - time.monotonic(),
            started=time.monotonic(),
            versions=_versions(),
        )
        core = Core(setup)
        self.serve = Serve(
            core, self._clients, self._workers, self._zap, launcher, roster, lambda: secrets.token_hex(16)
        )

    def __enter__(self) -> Serve:
        return self.serve

    def __exit__(self, *_: object) -> None:
        self.serve.close()


T = TypeVar("T")


def _bind(make: Callable[[], T], endpoint: str) -> T:
    try:
        return make()
    except zmq.ZMQError as error:
        raise StartError(f"cannot listen on {endpoint}: {error.strerror}") from None


def _hold(endpoint: str, patience_s: float) -> _Held:
    """Make sure that we may listen here and are the only one; wait this long for one that is just ending.

    Raises StartError.
    """
    if endpoint.startswith("tcp://"):
        if not endpoint.removeprefix("tcp://").startswith(_LOOPBACK):
            raise StartError(f"{endpoint}: beyond loopback a broker needs keys for its clients, and has none")
        return _Held(-1, None)
    try:
        path = ipc_path(endpoint)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is None:
        raise StartError(f"{endpoint}: not an ipc:// or tcp:// endpoint")
    socket_path = Path(path)
    socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (mode := socket_path.parent.stat().st_mode & 0o077) != 0:
        raise StartError(f"{socket_path.parent}: others may enter it (mode {mode:03o} too much); chmod 700 it")
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + patience_s
    while not _locked(fd):
        if time.monotonic() >= end:
            os.close(fd)
            raise StartError(f"{endpoint}: another broker has it")
        time.sleep(0.02)
    return _Held(fd, socket_path)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go(held: _Held) -> None:
    """Remove the socket files. The lock file stays: removing it would let two brokers hold two locks."""
    if held.path is not None:
        held.path.unlink(missing_ok=True)
        Path(f"{held.path}.workers").unlink(missing_ok=True)
        os.close(held.fd)


def _session_env(environ: Mapping[str, str], more: list[str]) -> dict[str, str]:
    return {name: environ[name] for name in (*_PASSED, *more) if name in environ}


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version

    return (
        ("replctl", version("replctl")),
        ("python", sys.version.split()[0]),
        ("pyzmq", zmq.__version__),
        ("libzmq", zmq.zmq_version()),
        ("protocol", "1"),
    )
