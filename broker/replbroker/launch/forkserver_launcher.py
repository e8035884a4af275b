"""Workers on this machine, forked from multiprocess's fork server, where everything they need is loaded.

The only file that knows multiprocess and the worker's code. One thread, which lives as long as the broker,
makes all calls into multiprocess: starting a process blocks for some milliseconds, and its bookkeeping is not
thread safe. Death is seen through a pidfd, at once and by the loop itself; killing goes through it too, so a
pid that was used again is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from multiprocess import current_process, forkserver, resource_tracker
from multiprocess.context import ForkServerContext

from replbroker.core.effects import WorkerSpec
from replbroker.descriptors import is_near_limit
from replbroker.launch.environment_remover import EnvironmentRemover
from replbroker.launch.launcher import ExitedWorker, RemovedEnvironment
from replbroker.launch.orphans import become_subreaper, reap_orphans
from replbroker.launch.sandbox_provider import SandboxProvider
from replwire.ext.contracts import Runtime
from replwire.identities import Identity
from replwire.limits import Limits
from replworker.boot import ExternalRuntime, WorkerArgs, main, remove_stale_state
from replworker.boot import list_named_environments as list_named_environments

_FORK_SERVER_LOST = 255  # what multiprocess makes of a fork server that is gone
_JOIN_TIMEOUT_S = 5.0  # a process whose pidfd says it is dead is reaped by the fork server well before


class ForkserverLauncher:
    """The launcher for this machine. `own` is a folder for the socket that the fork server takes orders at."""

    def __init__(
        self,
        socket_dir: Path,
        endpoint: str,
        interpreters: dict[str, str],
        env: dict[str, str],
        limits: Limits,
        state_dir: str,
        load_paths: tuple[str, ...],
        sandbox: SandboxProvider,
        external_runtimes: Mapping[str, tuple[str, Runtime]],
        identities: tuple[Identity, ...],
        open_files: tuple[int, int],
        log: Callable[[str], None],
    ) -> None:
        """`open_files`: the limit for the workers, and the broker's own."""
        self._sandbox = sandbox
        self._interpreters = interpreters
        self._external_runtimes = external_runtimes
        self._identities = identities
        self._worker_open_files, self._broker_open_files = open_files
        self._common = (env, limits, state_dir, load_paths)
        self._endpoint = endpoint
        self._context = ForkServerContext()
        current_process()._config["tempdir"] = str(
            socket_dir
        )  # else it makes one of its own, and a kill leaves it there
        self._context.set_forkserver_preload(["replworker.boot"])
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._processes: dict[int, Any] = {}  # the spawner thread's
        self._pids: dict[int, int] = {}  # of workers that are not buried yet
        self._starting = threading.Lock()
        self._pidfds: dict[int, int] = {}
        self._kill_requested: set[int] = set()  # killed: their death is no news
        self._live: set[int] = set()
        self._exited: list[ExitedWorker] = []
        self._environments: dict[int, str] = {}  # that live workers are in
        self._environment_remover = EnvironmentRemover(state_dir, log)
        self._sweep_due = False
        self._closing = False
        self._state_dir = state_dir
        remove_stale_state(state_dir)
        _hide_main()
        become_subreaper()
        self._thread = threading.Thread(target=self._run_tasks, name="spawner", daemon=True)
        self._thread.start()

    def register_descriptors(
        self, register: Callable[[int, Callable[[], None]], None], unregister: Callable[[int], None]
    ) -> None:
        self._register, self._unregister = register, unregister
        register(self._wake, self._handle_results)

    # --- the spawner thread ---

    def _run_tasks(self) -> None:
        while (order := self._tasks.get()) is not None:
            if not self._closing:
                order()

    def _post_result(self, result: Callable[[], None]) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def _start_process(self, worker: int, order: WorkerArgs) -> None:
        process = self._context.Process(target=main, args=(order,), name=f"worker-{worker}", daemon=True)
        try:
            with self._starting:
                process.start()
                self._pids[worker] = process.pid
            pidfd = os.pidfd_open(process.pid)
        except Exception as error:  # noqa: BLE001 - whatever it is, this thread must live to start the next one
            if process.pid is not None:
                process.kill()  # nobody could tell of its death, or end it later
            cause = f"could not be started: {type(error).__name__}: {error}"
            self._post_result(lambda: self._on_exited(worker, cause))
            return
        self._processes[worker] = process
        self._post_result(lambda: self._on_started(worker, pidfd))

    def _reap(self, worker: int) -> None:
        process = self._processes.pop(worker)
        process.join(_JOIN_TIMEOUT_S)
        code = process.exitcode
        if code is not None:
            process.close()
        if code == _FORK_SERVER_LOST:
            code = _adopted_exit_code(self._pids[worker])
        self._post_result(lambda: self._on_exited(worker, f"the worker process {_describe_exit(code)}"))

    # --- the loop's thread ---

    def spawn(self, worker: int, spec: WorkerSpec, token: str) -> None:
        interpreter = self._interpreters[spec.runtime]
        confine = self._sandbox.request_for(worker, spec)
        foreign = self._external_runtimes.get(spec.runtime)
        given = None if foreign is None else ExternalRuntime(foreign[1].arguments, foreign[1].reads)
        order = WorkerArgs(
            self._endpoint,
            token,
            spec.runtime,
            spec.environment,
            interpreter,
            *self._common,
            confine,
            given,
            self._identities,
            spec.principal,
            self._worker_open_files,
        )
        self._live.add(worker)
        if spec.environment is not None:
            self._environments[worker] = spec.environment
        if is_near_limit(self._broker_open_files):
            self._post_result(
                lambda: self._on_exited(worker, "could not be started: the broker has no file descriptor left")
            )
            return
        self._tasks.put(lambda: self._start_process(worker, order))

    def restart_fork_server(self) -> None:
        """The folder of the fork server's socket was made anew: another server makes another socket there."""
        self._tasks.put(self._kill_fork_server)

    def _kill_fork_server(self) -> None:
        """In the spawner thread. The next start of a worker finds it dead, and starts another; workers go on."""
        pid = forkserver._forkserver._forkserver_pid
        if pid is None:
            return
        fd = os.pidfd_open(pid)
        self._kill(fd)
        death = select.poll()
        death.register(fd, select.POLLIN)
        death.poll(_JOIN_TIMEOUT_S * 1000)
        os.close(fd)

    def _handle_results(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._results:
            self._results.popleft()()
        if self._sweep_due:
            self.reap_orphans()

    def _on_started(self, worker: int, pidfd: int) -> None:
        self._pidfds[worker] = pidfd
        self._register(pidfd, lambda: self._on_pidfd_readable(worker))
        if worker in self._kill_requested:
            self._kill(pidfd)

    def _on_pidfd_readable(self, worker: int) -> None:
        """Its pidfd says that it is dead."""
        pidfd = self._pidfds.pop(worker)
        self._unregister(pidfd)
        os.close(pidfd)
        self.reap_orphans()
        self._tasks.put(lambda: self._reap(worker))

    def _on_exited(self, worker: int, cause: str) -> None:
        """It is buried: what it has left is known by a pid that nobody has any more."""
        self._live.discard(worker)
        self._pids.pop(worker, None)
        if self._environments.pop(worker, None) is not None:
            self._environment_remover.on_worker_exit(self._environments.values())
        self._sandbox.cleanup(worker)
        remove_stale_state(self._state_dir)
        if worker in self._kill_requested:
            self._kill_requested.discard(worker)
        else:
            self._exited.append(ExitedWorker(worker, cause))

    def kill(self, worker: int) -> None:
        if worker not in self._live:
            return
        self._kill_requested.add(worker)
        pidfd = self._pidfds.get(worker)
        if pidfd is not None:
            self._kill(pidfd)

    def remove_environment(self, environment: str) -> None:
        self._post_result(lambda: self._environment_remover.request(environment, self._environments.values()))

    def take_removed_environments(self) -> list[RemovedEnvironment]:
        return self._environment_remover.take_removed()

    def set_identities(self, identities: tuple[Identity, ...]) -> None:
        self._identities = identities

    @staticmethod
    def _kill(pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def take_exited(self) -> list[ExitedWorker]:
        died, self._exited = self._exited, []
        return died

    def reap_orphans(self) -> None:
        """Kill what dead workers left behind. Also to be called on SIGCHLD."""
        self._sweep_due = not self._starting.acquire(blocking=False)
        if self._sweep_due:
            return  # a fork server may just be starting and is not to be taken for a stray: `_collect` comes back
        try:
            reap_orphans(self._expected_children())
        finally:
            self._starting.release()

    def _helper_pids(self) -> set[int]:
        """Children that the broker started: the fork server and multiprocess's resource tracker."""
        pids = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
        return {pid for pid in pids if pid is not None}

    def _expected_children(self) -> set[int]:
        """No strays: our own, and workers, which become our children when their fork server dies, and go on."""
        return self._helper_pids() | set(self._pids.copy().values())

    def close(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._closing = True
        self._kill_requested |= self._live
        self._tasks.put(None)
        for pidfd in self._pidfds.values():
            self._kill(pidfd)
        self._thread.join(deadline_s)
        self._handle_results()  # workers that had just been started
        for pidfd in self._pidfds.values():
            death = select.poll()  # `select` knows no descriptor beyond 1023
            death.register(pidfd, select.POLLIN)
            death.poll(max(0.0, end - time.monotonic()) * 1000)
            os.close(pidfd)
        # Without workers the fork server has nothing to do, and waiting for it to notice is a wait.
        for pid in self._helper_pids():
            os.kill(pid, signal.SIGKILL)
        while reap_orphans(set()) and time.monotonic() < end:
            time.sleep(0.001)
        remove_stale_state(self._state_dir)
        resource_tracker._resource_tracker._pid = None  # reaped; from 3.12 on it would be waited for again at exit
        os.close(self._wake)


def _adopted_exit_code(pid: int) -> int | None:
    """How a worker ended whose fork server had died: then it was our child. None where nobody can tell."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "has ended; how, the fork server that started it would know, and that has died"
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _hide_main() -> None:
    """Keep the caller's `__main__` out of the workers: multiprocess would import it again in each of them."""
    main_module = sys.modules["__main__"]
    blank = types.ModuleType("__main__")
    blank.__dict__["original"] = main_module  # its frames may still run
    sys.modules["__main__"] = blank
