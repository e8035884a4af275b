"""Workers on this machine, forked from multiprocess's fork server, where everything they need is loaded.

The only file that knows multiprocess and the worker's code. One thread, which lives as long as the broker, makes all
calls into multiprocess: starting a process blocks for some milliseconds, and its bookkeeping is not thread-safe. The
loop sees a worker's death through a pidfd, at once; killing goes through the pidfd too, so a pid that was used again
is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from multiprocess import current_process, forkserver, resource_tracker
from multiprocess import process as multiprocess_process
from multiprocess.context import ForkServerContext

from replbroker.core.effects import WorkerSpec
from replbroker.descriptors import is_near_limit
from replbroker.launch.egress_service import EgressService
from replbroker.launch.environment_remover import EnvironmentRemover
from replbroker.launch.launcher import ExitedWorker, RemovedEnvironment, StartedWorker
from replbroker.launch.orphans import become_subreaper, reap_orphans
from replbroker.launch.package_remover import PackageRemover
from replbroker.launch.process_tree import kill_tree
from replbroker.launch.sandbox_provider import SandboxProvider
from replbroker.launch.worker_handle import WorkerHandle, boot_id, decode_handle, read_start
from replbroker.loop_parts import Register, Unregister
from replwire.ext.contracts import Runtime
from replwire.identities import Identity
from replwire.limits import Limits
from replwire.network import HostLists, TrafficRecord
from replwire.packages import InstallerSettings
from replwire.secret_entries import SecretEntry
from replworker.boot import ExternalRuntime, WorkerArgs, main, remove_stale_state, remove_stored_snapshots
from replworker.boot import list_named_environments as list_named_environments
from replworker.egress.process import serve as serve_egress

_FORK_SERVER_LOST = 255  # exit code that multiprocess reports when its fork server has died
_JOIN_TIMEOUT_S = 5.0  # the fork server reaps a process well before
_CLOSE_TIMEOUT_S = 5.0
_DIED_ADOPTED = "the worker process has exited; the broker that would know the exit code has ended before it"


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """Settings of the worker launcher.

    Attributes:
        socket_dir: Directory for the fork server's socket.
        endpoint: Endpoint that workers connect to.
        interpreters: Interpreter of each runtime, by name.
        external_runtimes: Interpreter and contribution of each runtime that an extension contributes.
        env: Environment variables that sessions inherit.
        limits: The limits of the settings.
        state_dir: The broker's state directory.
        load_paths: Directories that `load-file` may read.
        open_files: Limit of open files for workers, and the broker's own.
        secrets: The secrets of the settings, without their values.
        installer: Settings of package installers.
        orphan_ttl_ms: Time without a broker after which a session ends.
        prepares_checkpoint: Whether workers take a checkpoint before they have a session.
        journal: Path of the journal, which lists the sessions.
    """

    socket_dir: Path
    endpoint: str
    interpreters: Mapping[str, str]
    external_runtimes: Mapping[str, tuple[str, Runtime]]
    env: dict[str, str]
    limits: Limits
    state_dir: str
    load_paths: tuple[str, ...]
    open_files: tuple[int, int]
    secrets: tuple[SecretEntry, ...] = ()
    installer: InstallerSettings
    orphan_ttl_ms: int = 0
    prepares_checkpoint: bool = False
    journal: str = ""


class ForkserverLauncher:
    """Launcher for this machine; see `Launcher`.

    Args:
        settings: What workers are started with.
        sandbox: Sandboxes for workers.
        identities: The configured identities.
    """

    def __init__(self, settings: LauncherSettings, sandbox: SandboxProvider, identities: tuple[Identity, ...]) -> None:
        self._settings = settings
        self._sandbox = sandbox
        self._identities = identities
        self._context = ForkServerContext()
        # Without this it makes a directory of its own, and a killed broker leaves that behind.
        current_process()._config["tempdir"] = str(settings.socket_dir)
        self._context.set_forkserver_preload(["replworker.boot"])
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._processes: dict[int, Any] = {}  # the spawner thread's
        self._pids: dict[int, int] = {}  # of workers that were not reaped yet
        self._starting = threading.Lock()
        self._pidfds: dict[int, int] = {}
        self._adopted: dict[int, int] = {}  # pids of workers that an earlier broker has started
        self._released: set[int] = set()  # workers that a later broker goes on with
        self._started: list[StartedWorker] = []
        self._kill_requested: set[int] = set()  # workers whose exit is not to be reported
        self._live: set[int] = set()
        self._exited: list[ExitedWorker] = []
        self._environments: dict[int, str] = {}  # of live workers
        self._environment_remover = EnvironmentRemover(settings.state_dir)
        self._package_remover = PackageRemover(settings.state_dir, settings.installer.cache_bytes)
        self._sweep_due = False
        self._closing = False
        remove_stale_state(settings.state_dir)
        _hide_main()
        become_subreaper()
        self._egress = EgressService(settings.socket_dir, self._start_egress, self._tasks.put, self._post_result)
        self._thread = threading.Thread(target=self._run_tasks, name="spawner", daemon=True)
        self._thread.start()

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Register the descriptor of the thread's results; those of workers follow as they start."""
        self._register, self._unregister = register, unregister
        register(self._wake, self._handle_results)
        self._egress.register_descriptors(register, unregister)

    # --- the spawner thread ---

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._closing:
                task()

    def _post_result(self, result: Callable[[], None]) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def _start_process(self, worker: int, args: WorkerArgs) -> None:
        process = self._context.Process(target=main, args=(args,), name=f"worker-{worker}", daemon=True)
        try:
            with self._starting:
                process.start()
                self._pids[worker] = process.pid
            pidfd = os.pidfd_open(process.pid)
            handle = self._describe(process.pid, args)
        except Exception as error:  # noqa: BLE001 - whatever it is, this thread has to live to start the next worker
            if process.pid is not None:
                process.kill()  # nothing could report its death, or end it later
            cause = f"could not be started: {type(error).__name__}: {error}"
            self._post_result(lambda: self._on_exited(worker, cause))
            return
        self._processes[worker] = process
        self._post_result(lambda: self._on_started(worker, pidfd, handle))

    def _describe(self, pid: int, args: WorkerArgs) -> str:
        """Return the durable id of a worker that has just been started."""
        sandbox_request = args.sandbox_request
        groups = self._sandbox.cgroups
        return WorkerHandle(
            pid=pid,
            start=read_start(pid) or 0,
            boot=boot_id(),
            slot=None if sandbox_request is None else sandbox_request.slot,
            environment=args.environment,
            cgroups=groups.directories if sandbox_request is not None else {},
            cgroup_version=groups.version,
            egress=sandbox_request is not None and sandbox_request.policy.network == "list",
        ).encode()

    def _start_egress(self, listener: socket.socket, control: socket.socket) -> Any:
        process = self._context.Process(
            target=serve_egress, args=(listener, control, self._settings.secrets), name="egress", daemon=True
        )
        with self._starting:
            process.start()
        return process

    def _reap(self, worker: int) -> None:
        process = self._processes.pop(worker, None)
        if process is None:
            code = _adopted_exit_code(self._adopted[worker])  # known to its parent, if this process has begun again
            cause = _DIED_ADOPTED if code is None else f"the worker process {_describe_exit(code)}"
            self._post_result(lambda: self._on_exited(worker, cause))
            return
        process.join(_JOIN_TIMEOUT_S)
        code = process.exitcode
        if code is not None:
            process.close()
        if code == _FORK_SERVER_LOST:
            code = _adopted_exit_code(self._pids[worker])
        self._post_result(lambda: self._on_exited(worker, f"the worker process {_describe_exit(code)}"))

    def _kill_fork_server(self) -> None:
        """Kill the fork server; the next start of a worker starts another, and workers go on."""
        pid = forkserver._forkserver._forkserver_pid
        if pid is None:
            return
        fd = os.pidfd_open(pid)
        self._kill(fd)
        death = select.poll()
        death.register(fd, select.POLLIN)
        death.poll(_JOIN_TIMEOUT_S * 1000)
        os.close(fd)

    # --- the loop's thread ---

    def spawn(self, worker: int, spec: WorkerSpec, token: str) -> None:
        settings, external = self._settings, self._settings.external_runtimes.get(spec.runtime)
        runtime = None if external is None else ExternalRuntime(external[1].arguments, external[1].reads)
        args = WorkerArgs(
            settings.endpoint,
            token,
            spec.runtime,
            spec.environment,
            settings.interpreters[spec.runtime],
            settings.env,
            settings.limits,
            settings.state_dir,
            settings.load_paths,
            self._sandbox.request_for(worker, spec),
            runtime,
            self._identities,
            spec.principal,
            self._egress.path,
            settings.secrets,
            settings.installer,
            settings.journal,
            settings.open_files[0],
            settings.orphan_ttl_ms,
            settings.prepares_checkpoint,
        )
        if self._sandbox.has_list(spec):
            self._egress.ensure()
        self._live.add(worker)
        if spec.environment is not None:
            self._environments[worker] = spec.environment
        if is_near_limit(settings.open_files[1]):
            cause = "could not be started: the broker has no file descriptor left"
            self._post_result(lambda: self._on_exited(worker, cause))
            return
        self._tasks.put(lambda: self._start_process(worker, args))

    def restart_fork_server(self) -> None:
        """Replace the fork server after its directory was recreated; the new one creates its socket there.

        So does the egress proxy.
        """
        self._egress.rebind()
        self._tasks.put(self._kill_fork_server)

    def _handle_results(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._results:
            self._results.popleft()()
        if self._sweep_due:
            self.reap_orphans()

    def _on_started(self, worker: int, pidfd: int, handle: str) -> None:
        self._started.append(StartedWorker(worker, handle))
        self._watch(worker, pidfd)

    def _watch(self, worker: int, pidfd: int) -> None:
        self._pidfds[worker] = pidfd
        self._register(pidfd, lambda: self._on_pidfd_readable(worker))
        if worker in self._kill_requested:
            self._kill_worker(worker)

    def adopt(self, worker: int, handle: str, *, keep: bool) -> bool:
        known = decode_handle(handle)
        if known is None:
            return False
        pidfd = known.open()
        if pidfd is None:
            self._sandbox.remove_groups(known.cgroup_version, known.cgroups)
            return False
        self._live.add(worker)
        self._adopted[worker] = known.pid
        if known.slot is not None:
            self._sandbox.adopt(worker, known.slot, known.cgroup_version, known.cgroups)
        if known.environment is not None:
            self._environments[worker] = known.environment
        if known.egress and keep:
            self._egress.ensure()
        if not keep:
            self._kill_requested.add(worker)
        self._post_result(lambda: self._watch(worker, pidfd))
        return keep

    def release(self, workers: Iterable[int]) -> None:
        self._released = set(workers)

    def take_started(self) -> list[StartedWorker]:
        started, self._started = self._started, []
        return started

    def _on_pidfd_readable(self, worker: int) -> None:
        """Reap a worker: its pidfd is readable once it is dead."""
        pidfd = self._pidfds.pop(worker)
        self._unregister(pidfd)
        os.close(pidfd)
        self.reap_orphans()
        self._tasks.put(lambda: self._reap(worker))

    def _on_exited(self, worker: int, cause: str) -> None:
        """Clean up the resources of a reaped worker."""
        self._live.discard(worker)
        self._pids.pop(worker, None)
        self._adopted.pop(worker, None)
        if self._environments.pop(worker, None) is not None:
            self._environment_remover.on_worker_exit(self._environments.values())
        earlier = self._sandbox.release(worker)
        self._tasks.put(lambda: self._sandbox.remove_dead_groups(earlier))  # looks through those of all workers
        self._package_remover.on_worker_exit()
        remove_stale_state(self._settings.state_dir)
        if worker in self._kill_requested:
            self._kill_requested.discard(worker)
        else:
            self._exited.append(ExitedWorker(worker, cause))

    def kill(self, worker: int) -> None:
        if worker not in self._live:
            return
        self._kill_requested.add(worker)
        if worker in self._pidfds:
            self._kill_worker(worker)

    def _kill_worker(self, worker: int) -> None:
        """Kill a worker. The orphans of one that an earlier broker has started would not become this broker's."""
        pidfd = self._pidfds[worker]
        pid = self._adopted.get(worker)
        if pid is None:
            self._kill(pidfd)
            return
        own = os.dup(pidfd)  # the worker may be dead, and its descriptor closed, before the thread gets to it

        def kill() -> None:
            kill_tree(pid, own)
            os.close(own)

        self._tasks.put(kill)

    def remove_environment(self, environment: str) -> None:
        self._post_result(lambda: self._environment_remover.request(environment, self._environments.values()))

    def start_egress(self) -> None:
        if self._sandbox.summary.policy is not None:
            self._egress.ensure()

    def remove_packages(self, session: str) -> None:
        self._package_remover.remove(session)

    def remove_closed_packages(self) -> None:
        self._package_remover.remove_closed()

    def remove_stored(self, used: Collection[str]) -> None:
        remove_stored_snapshots(self._settings.state_dir, self._settings.journal, used)

    def take_removed_environments(self) -> list[RemovedEnvironment]:
        return self._environment_remover.take_removed()

    def take_traffic(self) -> list[TrafficRecord]:
        return self._egress.take_records()

    def set_hosts(self, hosts: HostLists) -> None:
        self._sandbox.set_hosts(hosts)

    def set_identities(self, identities: tuple[Identity, ...]) -> None:
        self._identities = identities

    @staticmethod
    def _kill(pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def take_exited(self) -> list[ExitedWorker]:
        exited, self._exited = self._exited, []
        return exited

    def reap_orphans(self) -> None:
        self._sweep_due = not self._starting.acquire(blocking=False)
        if self._sweep_due:
            return  # a fork server may be starting, and would be taken for an orphan: `_handle_results` tries again
        try:
            reap_orphans(self._expected_children())
        finally:
            self._starting.release()

    def _helper_pids(self) -> set[int]:
        """Return the pids of the fork server and of multiprocess's resource tracker."""
        pids = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
        return {pid for pid in pids if pid is not None}

    def _expected_children(self) -> set[int]:
        """Return the pids that are no orphans: helpers, and workers inherited from a dead fork server."""
        return self._helper_pids() | set(self._pids.copy().values()) | set(self._adopted.copy().values())

    def _detach_released(self) -> set[int]:
        """Let go of the workers for a later broker: multiprocess would end them at exit. Return their pids."""
        pids = set()
        for worker in self._released:
            pids |= {pid for pid in (self._pids.get(worker), self._adopted.get(worker)) if pid is not None}
            if (process := self._processes.pop(worker, None)) is not None:
                multiprocess_process._children.discard(process)
            if (pidfd := self._pidfds.pop(worker, None)) is not None:
                os.close(pidfd)
        return pids

    def _kill_all(self) -> None:
        for worker, pidfd in self._pidfds.items():
            if worker in self._adopted and worker not in self._released:
                kill_tree(self._adopted[worker], pidfd)
            elif worker not in self._released:
                self._kill(pidfd)

    def close(self) -> None:
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        self._closing = True
        self._kill_requested |= self._live - self._released
        self._tasks.put(None)
        self._kill_all()
        self._egress.close(for_successor=bool(self._released))
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._handle_results()  # workers that had just been started
        kept = self._detach_released()
        self._kill_all()
        for pidfd in self._pidfds.values():
            death = select.poll()  # `select` cannot handle descriptors beyond 1023
            death.register(pidfd, select.POLLIN)
            death.poll(max(0.0, deadline - time.monotonic()) * 1000)
            os.close(pidfd)
        for pid in self._helper_pids():
            os.kill(pid, signal.SIGKILL)  # an idle fork server would exit by itself, but later
        while reap_orphans(kept) and time.monotonic() < deadline:
            time.sleep(0.001)
        self._sandbox.remove_dead_groups()
        remove_stale_state(self._settings.state_dir)
        self._package_remover.close(_CLOSE_TIMEOUT_S)
        resource_tracker._resource_tracker._pid = None  # reaped; from 3.12 on it would be waited for again at exit
        os.close(self._wake)


def _adopted_exit_code(pid: int) -> int | None:
    """Return the exit code of a worker that the broker inherited from a dead fork server, None when it is unknown."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "has exited; the fork server that would know the exit code has died"
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _hide_main() -> None:
    """Keep the caller's `__main__` out of the workers: multiprocess would import it again in each of them."""
    main_module = sys.modules["__main__"]
    blank = types.ModuleType("__main__")
    blank.__dict__["original"] = main_module  # its frames may still run
    sys.modules["__main__"] = blank
