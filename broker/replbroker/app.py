"""Builds a broker from its settings and runs it; nothing else builds."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import zmq

from replbroker.accepting import HeldListener, PathListener, PortListener
from replbroker.core.broker import Core
from replbroker.core.state import Setup
from replbroker.descriptors import fit, raise_limit
from replbroker.doors import Door, tcp_door, unix_door
from replbroker.endpoints import Held, StartError, hold, is_loopback, listening, passed, private_folder
from replbroker.extending import Extending
from replbroker.launch.local import Local, kept_environments
from replbroker.launch.memory import MachineMemory
from replbroker.launch.sandbox import Probed
from replbroker.launch.scratch import Scratch
from replbroker.own_places import OwnPlace, OwnPlaces
from replbroker.places import EndpointPlace, LinesPlace, ScratchPlace, StatePlace
from replbroker.reloading import ConfigReload, live
from replbroker.serve import Serve, log
from replbroker.session_list import SessionListFile
from replbroker.signals import Signals
from replbroker.transports.auth import Zap
from replbroker.transports.router import Clients
from replbroker.transports.workers import Workers
from replbroker.watch.audit import AuditFile
from replbroker.watchers import records, watchers
from replwire.config import Config, ConfigError, Loaded, several
from replwire.descriptors import room
from replwire.identities import Identities
from replwire.keys import KeyFault, Keys
from replwire.places import runtime_dir

__all__ = ["StartError", "run"]

# What an interpreter may see of the broker's environment; `[session] pass-env` adds to it.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR")
_HANDOVER_S = 3.0  # a broker that was told to end may take this long; its successor waits
UNSANDBOXED = "sessions are not sandboxed: their code can do what this user can"


def run(
    loaded: Loaded,
    endpoints: Sequence[str],
    *,
    state_dir: str,
    background: bool,
    announce: Callable[[dict[str, object]], None],
    read_again: Callable[[], Loaded],
) -> int:
    """Serve until told to stop; the exit code. `announce` is called once, when the broker can be reached, `read_again`
    when it is told to reload its config.

    It listens also at the sockets that systemd has passed. Raises StartError when an endpoint is taken, or may not be
    listened on.
    """
    private_folder(Path(state_dir))
    open_files = raise_limit()
    loaded, tight = _fitted(loaded, open_files[1])
    with ExitStack() as stack:
        held: list[Held] = []
        for url in endpoints:
            held.append(hold(url, _HANDOVER_S if background else 0.0))
            stack.callback(held[-1].let_go)
        held += passed(os.environ, os.getpid())
        doors = _doors(loaded.config)
        for door in doors:
            stack.callback(door.remove)
        session_list = SessionListFile(state_dir, endpoints[0], time.time(), _HANDOVER_S if background else 0.0)
        stack.callback(session_list.close)
        own = Scratch()
        stack.callback(own.remove)
        sandbox = _probe(loaded, held, doors, [state_dir, str(own.path)])
        signals = Signals()
        stack.callback(signals.close)
        _tune_collector()
        reloading = ConfigReload(loaded.config, lambda: _reread(read_again, open_files[1]), idle_exit=background)
        with _serve(
            loaded.config,
            reloading,
            held,
            doors,
            Path(state_dir),
            own,
            session_list,
            sandbox,
            open_files,
            idle_exit=background,
        ) as serve:
            lost = serve.restore()
            listening = [*(each.url for each in held), *(door.url for door in doors)]
            warnings = [*tight, *_unsandboxed(sandbox), *(door.warning for door in doors if door.warning)]
            if background:  # nobody else sees what is announced
                log("; ".join([f"listening on {', '.join(listening)}, pid {os.getpid()}", *warnings]))
            announce({"listening": listening, "pid": os.getpid(), "lost": lost, "warnings": warnings})
            log(f"ended: {serve.run(signals)}")
    return 0


def _fitted(loaded: Loaded, descriptors: int) -> tuple[Loaded, list[str]]:
    """The settings with limits that so many descriptors are enough for, and what to warn of."""
    limits, warning = fit(loaded.config.limits, loaded.config.broker.warm_workers, descriptors)
    if warning is None:
        return loaded, []
    return replace(loaded, config=msgspec.structs.replace(loaded.config, limits=limits)), [warning]


def _reread(read: Callable[[], Loaded], descriptors: int) -> Loaded:
    """The same of settings that are read again. Raises ConfigError."""
    try:
        return _fitted(read(), descriptors)[0]
    except StartError as error:
        raise ConfigError(str(error), "limits") from None


def _probe(loaded: Loaded, held: list[Held], doors: list[Door], folders: Sequence[str]) -> Probed:
    """Find out what this machine can do, before there is a second thread or a socket."""
    config = loaded.config
    env = _session_env(os.environ, config.session.pass_env)
    hidden = [*folders, runtime_dir(os.environ, os.getuid()), *_socket_files(config, held, doors)]
    protected = [*([loaded.file] if loaded.file else []), *(each.path for each in config.extensions if each.path)]
    return Probed(config.sandbox, sys.executable, env, hidden, protected)


def _socket_files(config: Config, held: list[Held], doors: list[Door]) -> Iterator[str]:
    """By which a session in that folder would come in as our user."""
    yield from (str(door.path) for door in doors if door.path is not None)
    for url in (*(each.url for each in held), config.broker.publish):
        if url.startswith("ipc://"):
            path = url.removeprefix("ipc://")
            yield from (path, f"{path}.lock", f"{path}.start.lock", f"{path}.kept")


def _unsandboxed(sandbox: Probed) -> list[str]:
    if sandbox.core.trouble is not None:
        return [f"no session will be opened, for lack of a sandbox: {sandbox.core.trouble}"]
    return [UNSANDBOXED] if sandbox.core.policy is None else []


def _doors(config: Config) -> list[Door]:
    doors: list[Door] = []
    try:
        for address in several(config.broker.tcp):
            doors.append(tcp_door(address))
        for path in several(config.broker.unix):
            doors.append(unix_door(path))
    except StartError:
        for door in doors:
            door.remove()
        raise
    return doors


def _tune_collector() -> None:
    """What is loaded stays, so a collection need not look at it; what an eval leaves is freed without one."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@contextmanager
def _serve(
    config: Config,
    reloading: ConfigReload,
    held: list[Held],
    doors: list[Door],
    state_dir: Path,
    own: Scratch,
    session_list: SessionListFile,
    sandbox: Probed,
    open_files: tuple[int, int],
    *,
    idle_exit: bool,
) -> Iterator[Serve]:
    """The broker's parts, put together; everything is given back at the end, also when the start fails half-way."""
    limits = config.limits
    extending = Extending(config.extensions)
    inner = f"ipc://{own.path}/workers"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack = ExitStack()
    try:
        keys = Keys(str(state_dir))
        audit = _audit(config, state_dir)
        clients = Clients(context, limits.max_message_bytes, room(limits, config.broker.warm_workers, open_files[1]))
        zap = Zap(context, keys.name_of, lambda address: audit.kept_out(address, time.monotonic()), clients.handshake)
        for each in held:
            _lock(clients.socket, keys, each.url)
            fd = _bind(clients.socket, each.url, each.fd)
            for listener in _holdable(each, fd, state_dir):
                clients.add_listener(listener)
        workers = Workers(context)
        _bind(workers.socket, inner)
        env = _session_env(os.environ, config.session.pass_env)
        interpreters = _interpreters(config) | {name: path for name, (path, _) in extending.runtimes().items()}
        load_paths = tuple(config.session.load_paths)
        launcher = Local(
            own.path,
            inner,
            interpreters,
            env,
            limits,
            str(state_dir),
            load_paths,
            sandbox,
            extending.runtimes(),
            tuple(config.identities),
            open_files,
            log,
        )
        core = Core(_setup(config, idle_exit, tuple(interpreters), keys, sandbox, extending, state_dir))
        places: list[OwnPlace] = [
            ScratchPlace(own, f"{own.path}/workers", lambda: _bind(workers.socket, inner), launcher.renew),
            *(_endpoint_place(each, clients, keys) for each in held if each.lock is not None),
            StatePlace(state_dir, session_list),
        ]
        looking_on = [
            *watchers(config, core, context, state_dir, log, stack, extending.backend),
            OwnPlaces(places, log, core.set_troubles),
        ]
        serve = Serve(
            core,
            clients,
            workers,
            zap,
            launcher,
            MachineMemory(),
            reloading,
            session_list,
            audit,
            _token,
            looking_on,
            extending,
            limits,
        )
        for door in doors:
            serve.streams.add_door(door.socket)
            if door.path is not None:
                places.append(LinesPlace(door.path, serve.streams.add_door))
        try:
            serve.watch_keys(keys.folders)
            yield serve
        finally:
            serve.close()
    finally:
        stack.close()
        context.destroy(linger=0)  # `term` would wait for ever for sockets of a start that failed half-way


def _endpoint_place(held: Held, clients: Clients, keys: Keys) -> EndpointPlace:
    def rebind() -> None:
        """The listener without a file stays: its connections would go with it."""
        _lock(clients.socket, keys, held.url)
        _bind(clients.socket, held.url)
        clients.renew_listeners()

    return EndpointPlace(held, rebind)


def _token() -> str:
    return secrets.token_hex(16)


def _interpreters(config: Config) -> dict[str, str]:
    """The runtimes that this machine has, the default one first."""
    found = {
        "python": config.python.interpreter or sys.executable,
        "node": config.node.interpreter or shutil.which("node"),
        "bash": config.bash.interpreter or shutil.which("bash"),
    }
    return {runtime: path for runtime, path in found.items() if path}


def _audit(config: Config, state_dir: Path) -> AuditFile:
    path = state_dir / "audit.ndjson" if config.broker.audit else None
    return AuditFile(path, config.broker.audit_bytes, _wall, log)


def _wall() -> float:
    return time.time() - time.monotonic()


def _setup(
    config: Config,
    idle_exit: bool,
    runtimes: tuple[str, ...],
    keys: Keys,
    sandbox: Probed,
    extending: Extending,
    state_dir: Path,
) -> Setup:
    now = live(config, idle_exit)
    return Setup(
        limits=now.limits,
        warm_workers=now.warm_workers,
        idle_exit_ms=now.idle_exit_ms,
        new_id=lambda: str(uuid.uuid4()),
        wall=_wall,
        started=time.monotonic(),
        runtimes=runtimes,
        agents=now.agents,
        identities=Identities(list(now.identities)),
        audit=config.broker.audit,
        sandbox=sandbox.core,
        own=f"uid:{os.getuid()}",
        admins=now.admins,
        name_of_token=lambda token: keys.name_of_token(token) or extending.name_of_token(token),
        versions=_versions(),
        boot=secrets.token_hex(4),
        record=records(config),
        standing=lambda name: keys.standing(name) or extending.standing(name),
        environments=lambda: kept_environments(str(state_dir)),
        hooks=extending.has_hooks,
        snapshots=extending.snapshots(),
    )


def _lock(socket: zmq.Socket[bytes], keys: Keys, url: str) -> None:
    """Over TCP clients come with keys, once the broker has one; it must have one beyond loopback."""
    try:
        pair = keys.server()
    except KeyFault as error:
        raise StartError(str(error)) from None
    curve = url.startswith("tcp://") and pair is not None
    socket.setsockopt(zmq.CURVE_SERVER, int(curve))
    if curve and pair is not None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    elif url.startswith("tcp://") and not is_loopback(url):
        raise StartError(f"{url}: beyond loopback clients need keys: make one with `replctl keys new NAME`")


def _bind(socket: zmq.Socket[bytes], url: str, fd: int = -1) -> int:
    """Listen there; with `fd` by a descriptor that listens already. The descriptor, where it is known."""
    try:
        fd = fd if fd >= 0 else listening(url)
        socket.setsockopt(zmq.USE_FD, fd)
        socket.bind(url)
        return fd
    except (OSError, zmq.ZMQError) as error:
        raise StartError(f"cannot listen on {url}: {error.strerror}") from None


def _holdable(held: Held, fd: int, state_dir: Path) -> Iterator[HeldListener]:
    """A listener that can be held while there is no room. A path has to lie where no session sees it."""
    if held.url.startswith("tcp://") and fd >= 0:
        yield PortListener(fd)
    elif held.path is not None and {state_dir, Path(runtime_dir(os.environ, os.getuid()))} & {*held.path.parents}:
        yield PathListener(held.path)


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
