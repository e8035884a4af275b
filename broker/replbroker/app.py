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

from replbroker.broker_extensions import BrokerExtensions
from replbroker.config_reload import ConfigReload, live_settings
from replbroker.core.config import CoreConfig
from replbroker.core.engine import BrokerCore
from replbroker.descriptors import fit_limits, raise_open_files_limit
from replbroker.endpoints import (
    BrokerEndpoint,
    StartError,
    ensure_private_dir,
    is_loopback,
    lock_endpoint,
    open_listening_fd,
    systemd_sockets,
)
from replbroker.event_loop import BrokerLoop, log
from replbroker.launch.forkserver_launcher import ForkserverLauncher, list_named_environments
from replbroker.launch.machine_memory import MachineMemoryReader
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.launch.sandbox_provider import SandboxProvider
from replbroker.listeners import ListeningSocket, listen_tcp, listen_unix
from replbroker.monitored_paths import MonitoredEndpoint, MonitoredLineSocket, MonitoredPrivateDir, MonitoredStateDir
from replbroker.path_monitor import MonitoredPath, PathMonitor
from replbroker.session_list import SessionListFile
from replbroker.signals import Signals
from replbroker.sinks.audit_file import AuditFile
from replbroker.sinks.factory import build_sinks, needs_every_event
from replbroker.transports.client_router import ClientRouter
from replbroker.transports.pausable_listeners import PausableListener, PausablePathListener, PausablePortListener
from replbroker.transports.worker_router import WorkerRouter
from replbroker.transports.zap import ZapAuthenticator
from replwire.config import Config, ConfigError, LoadedConfig, as_list
from replwire.descriptors import connection_capacity
from replwire.identities import Identities
from replwire.keys import InvalidKey, KeyStore
from replwire.paths import runtime_dir

__all__ = ["StartError", "run"]

# What an interpreter may see of the broker's environment; `[session] pass-env` adds to it.
_INHERITED_ENV = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TERM",
    "TMPDIR",
)
_PREDECESSOR_TIMEOUT_S = 3.0  # a broker that was told to end may take this long; its successor waits
UNSANDBOXED_WARNING = "sessions are not sandboxed: their code can do what this user can"


def run(
    loaded: LoadedConfig,
    endpoints: Sequence[str],
    *,
    state_dir: str,
    background: bool,
    announce: Callable[[dict[str, object]], None],
    reread: Callable[[], LoadedConfig],
) -> int:
    """Serve until told to stop; the exit code. `announce` is called once, when the broker can be reached, `read_again`
    when it is told to reload its config.

    It listens also at the sockets that systemd has passed. Raises StartError when an endpoint is taken, or may not be
    listened on.
    """
    ensure_private_dir(Path(state_dir))
    open_files = raise_open_files_limit()
    loaded, tight = _fit_limits(loaded, open_files[1])
    with ExitStack() as stack:
        held: list[BrokerEndpoint] = []
        for url in endpoints:
            held.append(lock_endpoint(url, _PREDECESSOR_TIMEOUT_S if background else 0.0))
            stack.callback(held[-1].release)
        held += systemd_sockets(os.environ, os.getpid())
        doors = _open_listeners(loaded.config)
        for door in doors:
            stack.callback(door.remove)
        session_list = SessionListFile(
            state_dir, endpoints[0], time.time(), _PREDECESSOR_TIMEOUT_S if background else 0.0
        )
        stack.callback(session_list.close)
        own = PrivateTempDir()
        stack.callback(own.remove)
        sandbox = _probe_sandbox(loaded, held, doors, [state_dir, str(own.path)])
        signals = Signals()
        stack.callback(signals.close)
        _tune_garbage_collector()
        reloading = ConfigReload(loaded.config, lambda: _read_config(reread, open_files[1]), idle_exit=background)
        with _build_loop(
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
            warnings = [*tight, *_sandbox_warnings(sandbox), *(door.warning for door in doors if door.warning)]
            if background:  # nobody else sees what is announced
                log("; ".join([f"listening on {', '.join(listening)}, pid {os.getpid()}", *warnings]))
            announce({"listening": listening, "pid": os.getpid(), "lost": lost, "warnings": warnings})
            log(f"ended: {serve.run(signals)}")
    return 0


def _fit_limits(loaded: LoadedConfig, descriptors: int) -> tuple[LoadedConfig, list[str]]:
    """The settings with limits that so many descriptors are enough for, and what to warn of."""
    limits, warning = fit_limits(loaded.config.limits, loaded.config.broker.warm_workers, descriptors)
    if warning is None:
        return loaded, []
    return replace(loaded, config=msgspec.structs.replace(loaded.config, limits=limits)), [warning]


def _read_config(read: Callable[[], LoadedConfig], descriptors: int) -> LoadedConfig:
    """The same of settings that are read again. Raises ConfigError."""
    try:
        return _fit_limits(read(), descriptors)[0]
    except StartError as error:
        raise ConfigError(str(error), "limits") from None


def _probe_sandbox(
    loaded: LoadedConfig, held: list[BrokerEndpoint], doors: list[ListeningSocket], directories: Sequence[str]
) -> SandboxProvider:
    """Find out what this machine can do, before there is a second thread or a socket."""
    config = loaded.config
    env = _session_env(os.environ, config.session.pass_env)
    hidden = [*directories, runtime_dir(os.environ, os.getuid()), *_socket_files(config, held, doors)]
    protected = [*([loaded.file] if loaded.file else []), *(each.path for each in config.extensions if each.path)]
    return SandboxProvider(config.sandbox, sys.executable, env, hidden, protected)


def _socket_files(config: Config, held: list[BrokerEndpoint], doors: list[ListeningSocket]) -> Iterator[str]:
    """By which a session in that folder would come in as our user."""
    yield from (str(door.path) for door in doors if door.path is not None)
    for url in (*(each.url for each in held), config.broker.publish):
        if url.startswith("ipc://"):
            path = url.removeprefix("ipc://")
            yield from (path, f"{path}.lock", f"{path}.start.lock", f"{path}.kept")


def _sandbox_warnings(sandbox: SandboxProvider) -> list[str]:
    if sandbox.summary.problem is not None:
        return [f"no session will be opened, for lack of a sandbox: {sandbox.summary.problem}"]
    return [UNSANDBOXED_WARNING] if sandbox.summary.policy is None else []


def _open_listeners(config: Config) -> list[ListeningSocket]:
    doors: list[ListeningSocket] = []
    try:
        for address in as_list(config.broker.tcp):
            doors.append(listen_tcp(address))
        for path in as_list(config.broker.unix):
            doors.append(listen_unix(path))
    except StartError:
        for door in doors:
            door.remove()
        raise
    return doors


def _tune_garbage_collector() -> None:
    """What is loaded stays, so a collection need not look at it; what an eval leaves is freed without one."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@contextmanager
def _build_loop(
    config: Config,
    reloading: ConfigReload,
    held: list[BrokerEndpoint],
    doors: list[ListeningSocket],
    state_dir: Path,
    private_dir: PrivateTempDir,
    session_list: SessionListFile,
    sandbox: SandboxProvider,
    open_files: tuple[int, int],
    *,
    idle_exit: bool,
) -> Iterator[BrokerLoop]:
    """The broker's parts, put together; everything is given back at the end, also when the start fails half-way."""
    limits = config.limits
    extending = BrokerExtensions(config.extensions)
    inner = f"ipc://{private_dir.path}/workers"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack = ExitStack()
    try:
        keys = KeyStore(str(state_dir))
        audit = _open_audit_file(config, state_dir)
        clients = ClientRouter(
            context, limits.max_message_bytes, connection_capacity(limits, config.broker.warm_workers, open_files[1])
        )
        zap = ZapAuthenticator(
            context,
            keys.name_for_key,
            lambda address: audit.write_rejected(address, time.monotonic()),
            clients.next_handshake_number,
        )
        for each in held:
            _configure_curve(clients.socket, keys, each.url)
            fd = _bind(clients.socket, each.url, each.fd)
            for listener in _pausable_listeners(each, fd, state_dir):
                clients.add_listener(listener)
        workers = WorkerRouter(context)
        _bind(workers.socket, inner)
        env = _session_env(os.environ, config.session.pass_env)
        interpreters = _interpreters(config) | {name: path for name, (path, _) in extending.runtimes().items()}
        load_paths = tuple(config.session.load_paths)
        launcher = ForkserverLauncher(
            private_dir.path,
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
        core = BrokerCore(_core_config(config, idle_exit, tuple(interpreters), keys, sandbox, extending, state_dir))
        for name, take_snapshot in extending.snapshots().items():
            core.add_introspector(name, take_snapshot)
        places: list[MonitoredPath] = [
            MonitoredPrivateDir(
                private_dir,
                f"{private_dir.path}/workers",
                lambda: _bind(workers.socket, inner),
                launcher.restart_fork_server,
            ),
            *(_monitored_endpoint(each, clients, keys) for each in held if each.lock is not None),
            MonitoredStateDir(state_dir, session_list),
        ]
        looking_on = [
            *build_sinks(config, core, context, state_dir, log, stack, extending.create_transcript_backend),
            PathMonitor(places, log, core.set_problems),
        ]
        serve = BrokerLoop(
            core,
            clients,
            workers,
            zap,
            launcher,
            MachineMemoryReader(),
            reloading,
            session_list,
            audit,
            _new_token,
            looking_on,
            extending,
            limits,
        )
        for door in doors:
            serve.line_server.add_listener(door.socket)
            if door.path is not None:
                places.append(MonitoredLineSocket(door.path, serve.line_server.add_listener))
        try:
            serve.watch_keys(keys.directories)
            yield serve
        finally:
            serve.close()
    finally:
        stack.close()
        context.destroy(linger=0)  # `term` would wait for ever for sockets of a start that failed half-way


def _monitored_endpoint(held: BrokerEndpoint, clients: ClientRouter, keys: KeyStore) -> MonitoredEndpoint:
    def rebind() -> None:
        """The listener without a file stays: its connections would go with it."""
        _configure_curve(clients.socket, keys, held.url)
        _bind(clients.socket, held.url)
        clients.refresh_listeners()

    return MonitoredEndpoint(held, rebind)


def _new_token() -> str:
    return secrets.token_hex(16)


def _interpreters(config: Config) -> dict[str, str]:
    """The runtimes that this machine has, the default one first."""
    found = {
        "python": config.python.interpreter or sys.executable,
        "node": config.node.interpreter or shutil.which("node"),
        "bash": config.bash.interpreter or shutil.which("bash"),
    }
    return {runtime: path for runtime, path in found.items() if path}


def _open_audit_file(config: Config, state_dir: Path) -> AuditFile:
    path = state_dir / "audit.ndjson" if config.broker.audit else None
    return AuditFile(path, config.broker.audit_bytes, _monotonic_to_unix, log)


def _monotonic_to_unix() -> float:
    return time.time() - time.monotonic()


def _core_config(
    config: Config,
    idle_exit: bool,
    runtimes: tuple[str, ...],
    keys: KeyStore,
    sandbox: SandboxProvider,
    extending: BrokerExtensions,
    state_dir: Path,
) -> CoreConfig:
    now = live_settings(config, idle_exit)
    return CoreConfig(
        limits=now.limits,
        warm_workers=now.warm_workers,
        idle_exit_ms=now.idle_exit_ms,
        new_id=lambda: str(uuid.uuid4()),
        monotonic_to_unix=_monotonic_to_unix,
        started=time.monotonic(),
        runtimes=runtimes,
        agents=now.agents,
        identities=Identities(list(now.identities)),
        audit=config.broker.audit,
        sandbox=sandbox.summary,
        broker_user=f"uid:{os.getuid()}",
        admins=now.admins,
        name_of_token=lambda token: keys.name_for_token(token) or extending.name_for_token(token),
        versions=_versions(),
        boot_id=secrets.token_hex(4),
        emit_all_events=needs_every_event(config),
        credentials_of=lambda name: keys.file_versions(name) or extending.credentials_of(name),
        environments=lambda: list_named_environments(str(state_dir)),
        has_hooks=extending.has_hooks,
    )


def _configure_curve(socket: zmq.Socket[bytes], keys: KeyStore, url: str) -> None:
    """Over TCP clients come with keys, once the broker has one; it must have one beyond loopback."""
    try:
        pair = keys.server()
    except InvalidKey as error:
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
        fd = fd if fd >= 0 else open_listening_fd(url)
        socket.setsockopt(zmq.USE_FD, fd)
        socket.bind(url)
        return fd
    except (OSError, zmq.ZMQError) as error:
        raise StartError(f"cannot listen on {url}: {error.strerror}") from None


def _pausable_listeners(held: BrokerEndpoint, fd: int, state_dir: Path) -> Iterator[PausableListener]:
    """A listener that can be held while there is no room. A path has to lie where no session sees it."""
    if held.url.startswith("tcp://") and fd >= 0:
        yield PausablePortListener(fd)
    elif held.path is not None and {state_dir, Path(runtime_dir(os.environ, os.getuid()))} & {*held.path.parents}:
        yield PausablePathListener(held.path)


def _session_env(environ: Mapping[str, str], extra: list[str]) -> dict[str, str]:
    return {name: environ[name] for name in (*_INHERITED_ENV, *extra) if name in environ}


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version

    return (
        ("replctl", version("replctl")),
        ("python", sys.version.split()[0]),
        ("pyzmq", zmq.__version__),
        ("libzmq", zmq.zmq_version()),
        ("protocol", "1"),
    )
