"""The broker's composition root: acquires what a broker needs, and runs it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from replbroker.assembly import BrokerResources, assemble
from replbroker.config_reload import ConfigReload
from replbroker.core.sessions.session_records import MACHINE_RESTARTED
from replbroker.core_config import session_env
from replbroker.descriptors import fit_limits, raise_open_files_limit, restore_open_files_limit
from replbroker.endpoints import (
    BrokerEndpoint,
    StartError,
    ensure_private_dir,
    lock_endpoint,
    pass_systemd_sockets,
    systemd_sockets,
)
from replbroker.journal import Journal
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.launch.sandbox_provider import SandboxProvider
from replbroker.lease import StdinLease
from replbroker.listeners import ListeningSocket, listen_tcp, listen_unix
from replbroker.logs import log_to_stderr
from replbroker.signals import Signals
from replwire.config import Config, ConfigError, LoadedConfig, as_list
from replwire.paths import runtime_dir

__all__ = ["StartError", "run"]

_PREDECESSOR_TIMEOUT_S = 3.0  # how long a broker that was told to end may take before its successor gives up
UNSANDBOXED_WARNING = "sessions are not sandboxed: their code can do whatever this user can"
_log = logging.getLogger(__name__)


def run(
    loaded: LoadedConfig,
    endpoints: Sequence[str],
    *,
    state_dir: str,
    background: bool,
    ends_with_stdin: bool,
    announce: Callable[[dict[str, object]], None],
    reread: Callable[[], LoadedConfig],
) -> bool:
    """Serve until told to stop.

    The broker listens at the given endpoints, and at the sockets that systemd passes (sd_listen_fds(3)).

    Args:
        loaded: The settings, and the file they came from.
        endpoints: Addresses for ZeroMQ clients, `ipc://PATH` or `tcp://HOST:PORT`.
        state_dir: The state directory; created if it is missing.
        background: Whether the broker was started for a client: it waits for a predecessor that is ending, ends
            when it is idle, and logs what it announces.
        ends_with_stdin: Whether the end of standard input ends the broker and every session.
        announce: Called once, when clients can connect, with `listening`, `pid`, `lost` and `warnings`.
        reread: Loads the settings again. Raises ConfigError.

    Returns:
        Whether the process is to begin again, with the same arguments: sessions wait for that broker.

    Raises:
        StartError: An endpoint is taken, or may not be listened on.
    """
    with ExitStack() as stack:
        stack.enter_context(log_to_stderr())
        resources, warnings = _acquire(loaded, endpoints, Path(state_dir), background, reread, stack)
        signals = Signals()
        stack.callback(signals.close)
        _tune_garbage_collector()
        driver, loop = stack.enter_context(assemble(resources))
        if ends_with_stdin:
            loop.add_source(StdinLease(0, driver.on_lease_end))
        lost = driver.restore(resources.saved)
        listening = [*(each.url for each in resources.endpoints), *(each.url for each in resources.listeners)]
        if background:  # nobody else sees what is announced
            _log.info("%s", "; ".join([f"listening on {', '.join(listening)}, pid {os.getpid()}", *warnings]))
        cause = MACHINE_RESTARTED if resources.saved.machine_restarted else "the previous broker ended unexpectedly"
        announce({"listening": listening, "pid": os.getpid(), "lost": lost, "lost-cause": cause, "warnings": warnings})
        _log.info("ended: %s", loop.run(signals))
        resources.private_dir.is_left = driver.has_left_sessions
    if driver.is_restarting:
        pass_systemd_sockets(os.environ, os.getpid())
    return driver.is_restarting


def _acquire(
    loaded: LoadedConfig,
    endpoints: Sequence[str],
    state_dir: Path,
    background: bool,
    reread: Callable[[], LoadedConfig],
    stack: ExitStack,
) -> tuple[BrokerResources, list[str]]:
    """Acquire what the broker needs; `stack` releases it.

    Returns:
        The resources, and warnings to announce.
    """
    ensure_private_dir(state_dir)
    open_files = raise_open_files_limit()
    stack.callback(restore_open_files_limit, open_files[0])
    loaded, warnings = _fit_limits(loaded, open_files[1])
    timeout_s = _PREDECESSOR_TIMEOUT_S if background else 0.0
    owned: list[BrokerEndpoint] = []
    for url in endpoints:
        owned.append(lock_endpoint(url, timeout_s))
        stack.callback(owned[-1].release)
    owned += systemd_sockets(os.environ, os.getpid())
    listeners = _open_listeners(loaded.config, stack)
    journal = Journal(str(state_dir), endpoints[0], time.time(), timeout_s)
    stack.callback(journal.close)
    saved, damage = journal.read_previous()
    if damage is not None:
        _log.warning("the journal is damaged, epochs go on above %d: %s", saved.floor, damage)
    private_dir = PrivateTempDir(saved.private_dir)
    journal.set_private_dir(str(private_dir.path))
    stack.callback(private_dir.remove)
    sandbox = _probe_sandbox(loaded, [str(state_dir), str(private_dir.path), *_socket_files(loaded, owned, listeners)])
    resources = BrokerResources(
        config=loaded.config,
        config_reload=ConfigReload(loaded.config, lambda: _read_config(reread, open_files[1]), idle_exit=background),
        endpoints=owned,
        listeners=listeners,
        state_dir=state_dir,
        private_dir=private_dir,
        journal=journal,
        saved=saved,
        sandbox=sandbox,
        open_files=open_files,
        idle_exit=background,
    )
    return resources, [*warnings, *_sandbox_warnings(sandbox), *(each.warning for each in listeners if each.warning)]


def _fit_limits(loaded: LoadedConfig, descriptors: int) -> tuple[LoadedConfig, list[str]]:
    """Return the settings with limits that this many descriptors are enough for, and warnings."""
    limits, warning = fit_limits(loaded.config.limits, loaded.config.broker.warm_workers, descriptors)
    if warning is None:
        return loaded, []
    return replace(loaded, config=msgspec.structs.replace(loaded.config, limits=limits)), [warning]


def _read_config(read: Callable[[], LoadedConfig], descriptors: int) -> LoadedConfig:
    """Load the settings again, with limits that fit.

    Raises:
        ConfigError: The settings cannot be used.
    """
    try:
        return _fit_limits(read(), descriptors)[0]
    except StartError as error:
        raise ConfigError(str(error), "limits") from None


def _open_listeners(config: Config, stack: ExitStack) -> list[ListeningSocket]:
    listeners = []
    for address in as_list(config.broker.tcp):
        listeners.append(listen_tcp(address))
        stack.callback(listeners[-1].remove)
    for path in as_list(config.broker.unix):
        listeners.append(listen_unix(path))
        stack.callback(listeners[-1].remove)
    return listeners


def _probe_sandbox(loaded: LoadedConfig, hidden: Sequence[str]) -> SandboxProvider:
    """Find out what this machine can do, before there is a second thread or a socket."""
    config = loaded.config
    env = session_env(os.environ, config.session.pass_env)
    protected = [*([loaded.file] if loaded.file else []), *(each.path for each in config.extensions if each.path)]
    hidden = [*hidden, runtime_dir(os.environ, os.getuid())]
    return SandboxProvider(config.sandbox, sys.executable, env, hidden, protected)


def _socket_files(
    loaded: LoadedConfig, endpoints: list[BrokerEndpoint], listeners: list[ListeningSocket]
) -> Iterator[str]:
    """Yield the socket files that a session could connect to as this user."""
    yield from (str(listener.path) for listener in listeners if listener.path is not None)
    for url in (*(each.url for each in endpoints), loaded.config.broker.publish):
        if url.startswith("ipc://"):
            path = url.removeprefix("ipc://")
            yield from (path, f"{path}.lock", f"{path}.start.lock", f"{path}.kept")


def _sandbox_warnings(sandbox: SandboxProvider) -> list[str]:
    if sandbox.summary.problem is not None:
        return [f"no session will be opened, for lack of a sandbox: {sandbox.summary.problem}"]
    return [UNSANDBOXED_WARNING] if sandbox.summary.policy is None else []


def _tune_garbage_collector() -> None:
    """Exempt what is loaded from collections; what an eval leaves is freed by reference counts."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
