"""Builds a broker's parts and puts them together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import zmq

from replbroker.broker_extensions import BrokerExtensions
from replbroker.config_reload import ConfigReload
from replbroker.core.engine import BrokerCore
from replbroker.core.records import SavedState
from replbroker.core_config import (
    BrokerRun,
    CoreServices,
    build_core_config,
    find_interpreters,
    installer_settings,
    monotonic_to_unix,
    session_env,
)
from replbroker.core_driver import CoreDriver, EffectTargets
from replbroker.endpoints import BrokerEndpoint
from replbroker.event_loop import BrokerLoop
from replbroker.guarded_steps import GuardedSteps
from replbroker.hook_runner import HookRunner
from replbroker.journal import Journal
from replbroker.key_watch import KeyWatch
from replbroker.launch.forkserver_launcher import ForkserverLauncher, LauncherSettings
from replbroker.launch.machine_memory import MachineMemoryReader
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.launch.sandbox_provider import SandboxProvider
from replbroker.listeners import ListeningSocket
from replbroker.loop_parts import Closable, DescriptorSource
from replbroker.monitored_paths import (
    MonitoredEndpoint,
    MonitoredLineSocket,
    MonitoredPrivateDir,
    MonitoredStateDir,
)
from replbroker.operation_handler import OperationHandler
from replbroker.operation_runner import OperationRunner
from replbroker.path_monitor import MonitoredPath, PathMonitor
from replbroker.sinks.audit_file import AuditFile
from replbroker.sinks.event_sink import EventSink, RecordingSink
from replbroker.sinks.factory import (
    build_metrics_server,
    build_publisher,
    build_trace_sink,
    build_transcript_sink,
)
from replbroker.snapshot_files import SnapshotFiles
from replbroker.transports.binding import bind, configure_curve, pausable_listeners
from replbroker.transports.client_router import ClientRouter
from replbroker.transports.line_server import LineServer
from replbroker.transports.worker_router import WorkerRouter
from replbroker.transports.zap import ZapAuthenticator
from replwire.config import Config
from replwire.descriptors import connection_capacity
from replwire.keys import KeyStore


@dataclass(frozen=True, kw_only=True)
class BrokerResources:
    """Everything a broker acquires before it is assembled.

    Attributes:
        config: The settings.
        config_reload: Rereads the settings.
        endpoints: Locked endpoints for ZeroMQ clients.
        listeners: Bound sockets for line clients.
        state_dir: The state directory.
        private_dir: Directory for the sockets between the broker's own parts.
        journal: The journal, locked.
        saved: What the broker before this one has saved.
        sandbox: Result of the sandbox probe.
        open_files: Limit of open files for workers, and the broker's own.
        idle_exit: Whether the broker ends when it is idle.
    """

    config: Config
    config_reload: ConfigReload
    endpoints: list[BrokerEndpoint]
    listeners: list[ListeningSocket]
    state_dir: Path
    private_dir: PrivateTempDir
    journal: Journal
    saved: SavedState
    sandbox: SandboxProvider
    open_files: tuple[int, int]
    idle_exit: bool

    @property
    def worker_socket(self) -> str:
        """Path of the socket that workers connect to."""
        return f"{self.private_dir.path}/workers"

    @property
    def worker_endpoint(self) -> str:
        """Endpoint of that socket."""
        return f"ipc://{self.worker_socket}"


@contextmanager
def assemble(resources: BrokerResources) -> Iterator[tuple[CoreDriver, BrokerLoop]]:
    """Build a broker; everything is released at the end, also when the start fails half-way.

    Yields:
        The driver, to restore sessions with, and the loop to run.

    Raises:
        StartError: A part cannot be built; the message says why and what to do.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as stack:
        stack.callback(context.destroy, linger=0)  # `term` would wait for ever for sockets of a failed start
        yield _Assembly(resources, context, stack).build()


class _Assembly:
    """One broker under construction."""

    def __init__(self, resources: BrokerResources, context: zmq.Context[zmq.Socket[bytes]], stack: ExitStack) -> None:
        self._resources = resources
        self._config = resources.config
        self._context = context
        self._stack = stack
        self._extensions = BrokerExtensions(self._config.extensions)
        self._keys = KeyStore(str(resources.state_dir))
        path = resources.state_dir / "audit.ndjson" if self._config.broker.audit else None
        self._audit = AuditFile(path, self._config.broker.audit_bytes, monotonic_to_unix)
        self._workers = WorkerRouter(context)
        bind(self._workers.socket, resources.worker_endpoint)
        self._external = self._extensions.runtimes()
        external = {name: path for name, (path, _) in self._external.items()}
        self._interpreters = find_interpreters(self._config) | external
        self._launcher = self._build_launcher()

    def build(self) -> tuple[CoreDriver, BrokerLoop]:
        """Build every part, in the order of their dependencies."""
        run = BrokerRun.begin()
        recorders = self._build_recorders(run)
        core = self._build_core(run, recorders)
        publisher = build_publisher(self._config.broker.publish, core.set_published_types, self._context, self._stack)
        sinks: list[EventSink] = [*recorders.values(), *([publisher] if publisher is not None else [])]
        hooks = self._extensions.build_hook_runner(self._config.limits.hook_time_ms / 1000)
        operations = self._extensions.build_operation_runner()
        steps = GuardedSteps()
        driver = CoreDriver(core, self._targets(sinks, hooks, operations), steps)
        self._extensions.announce(core)
        clients, zap = self._build_clients(driver)
        lines = LineServer(driver, self._config.limits.max_message_bytes)
        for listener in self._resources.listeners:
            lines.add_listener(listener.socket)
        driver.add_transport(clients)
        driver.add_transport(lines)
        driver.add_transport(operations)
        metrics = build_metrics_server(self._config.metrics.listen, core, self._stack)
        servers = [metrics] if metrics is not None else []
        monitor = PathMonitor(self._monitored_paths(clients, lines), core.set_problems)
        key_watch = KeyWatch(self._keys.directories, driver.on_identities_changed)
        loop = BrokerLoop(core, driver, self._workers, clients, steps)
        loop.add_timed([lines, driver, clients, self._audit, *sinks, monitor, *servers])
        publishers = [publisher] if publisher is not None else []
        sources: list[DescriptorSource] = [clients, zap, lines, self._launcher, monitor, key_watch]
        for source in (*sources, *servers, *publishers):
            loop.add_source(source)
        if hooks is not None:
            loop.register(hooks.fd, driver.handle_hook_outcomes)
        loop.register(operations.fd, OperationHandler(core, driver, operations).handle_steps)
        hook_parts = [hooks] if hooks is not None else []
        # Closed in reverse. Workers come first: a client must not see the broker's end before they are dead.
        shells: list[Closable] = [loop, key_watch, zap, clients, lines, *servers, monitor]
        for part in (*shells, *reversed(sinks), *hook_parts, operations, self._audit, self._launcher, self._workers):
            self._stack.callback(part.close)
        return driver, loop

    def _build_launcher(self) -> ForkserverLauncher:
        resources, session = self._resources, self._config.session
        return ForkserverLauncher(
            LauncherSettings(
                socket_dir=resources.private_dir.path,
                endpoint=resources.worker_endpoint,
                interpreters=self._interpreters,
                external_runtimes=self._external,
                env=session_env(os.environ, session.pass_env),
                limits=self._config.limits,
                state_dir=str(resources.state_dir),
                load_paths=tuple(session.load_paths),
                open_files=resources.open_files,
                secrets=tuple(self._config.secrets),
                installer=installer_settings(os.environ, self._config.packages),
                orphan_ttl_ms=self._config.broker.orphan_ttl_ms,
                prepares_checkpoint=session.checkpoints == "auto",
                journal=str(resources.journal.path),
            ),
            resources.sandbox,
            tuple(self._config.identities),
        )

    def _build_recorders(self, run: BrokerRun) -> dict[str, RecordingSink]:
        transcripts = build_transcript_sink(
            self._config.transcript, self._resources.state_dir, self._extensions.create_transcript_backend
        )
        traces = build_trace_sink(self._config.trace, run.boot_id, run.version, monotonic_to_unix)
        found = {"transcripts": transcripts, "traces": traces}
        return {name: sink for name, sink in found.items() if sink is not None}

    def _build_core(self, run: BrokerRun, recorders: Mapping[str, RecordingSink]) -> BrokerCore:
        services = CoreServices(
            run=run,
            runtimes=tuple(self._interpreters),
            keys=self._keys,
            sandbox=self._resources.sandbox.summary,
            extensions=self._extensions,
            state_dir=self._resources.state_dir,
        )
        core = BrokerCore(build_core_config(self._config, services, idle_exit=self._resources.idle_exit))
        recorded = {name: sink.snapshot for name, sink in recorders.items()}
        for name, take_snapshot in (self._extensions.snapshots() | recorded).items():
            core.add_introspector(name, take_snapshot)
        return core

    def _targets(self, sinks: list[EventSink], hooks: HookRunner | None, operations: OperationRunner) -> EffectTargets:
        return EffectTargets(
            workers=self._workers,
            launcher=self._launcher,
            sinks=sinks,
            audit=self._audit,
            journal=self._resources.journal,
            config_reload=self._resources.config_reload,
            memory=MachineMemoryReader(),
            extensions=self._extensions,
            hooks=hooks,
            operations=operations,
            snapshots=SnapshotFiles(self._resources.state_dir / "snapshots"),
        )

    def _build_clients(self, driver: CoreDriver) -> tuple[ClientRouter, ZapAuthenticator]:
        """Build the router for clients, and bind it to the endpoints."""
        limits, keys, audit = self._config.limits, self._keys, self._audit
        capacity = connection_capacity(limits, self._config.broker.warm_workers, self._resources.open_files[1])
        clients = ClientRouter(self._context, driver, limits.max_message_bytes, capacity)
        zap = ZapAuthenticator(
            self._context,
            keys.name_for_key,
            lambda address: audit.write_rejected(address, time.monotonic()),
            clients.next_handshake_number,
        )  # before the sockets that ask it
        for endpoint in self._resources.endpoints:
            configure_curve(clients.socket, keys, endpoint.url)
            fd = bind(clients.socket, endpoint.url, endpoint.fd)
            for listener in pausable_listeners(endpoint, fd, self._resources.state_dir):
                clients.add_listener(listener)
        return clients, zap

    def _monitored_paths(self, clients: ClientRouter, lines: LineServer) -> list[MonitoredPath]:
        resources = self._resources

        def rebind_workers() -> None:
            bind(self._workers.socket, resources.worker_endpoint)

        private = MonitoredPrivateDir(
            resources.private_dir, resources.worker_socket, rebind_workers, self._launcher.restart_fork_server
        )
        lines_paths = [each.path for each in resources.listeners if each.path is not None]
        return [
            private,
            *(self._monitored_endpoint(each, clients) for each in resources.endpoints if each.lock is not None),
            MonitoredStateDir(resources.state_dir, resources.journal),
            *(MonitoredLineSocket(path, lines.add_listener) for path in lines_paths),
        ]

    def _monitored_endpoint(self, endpoint: BrokerEndpoint, clients: ClientRouter) -> MonitoredEndpoint:
        def rebind() -> None:
            """Bind another listener; the one without a file stays, because its connections would end with it."""
            configure_curve(clients.socket, self._keys, endpoint.url)
            bind(clients.socket, endpoint.url)
            clients.refresh_listeners()

        return MonitoredEndpoint(endpoint, rebind)
