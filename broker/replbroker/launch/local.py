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

from replbroker.core.effects import Spec
from replbroker.descriptors import are_short
from replbroker.launch.base import Died, Removed
from replbroker.launch.environments import EnvironmentRemoval
from replbroker.launch.sandbox import Probed
from replbroker.launch.strays import become_subreaper, sweep
from replwire.ext.contracts import Runtime
from replwire.identities import Identity
from replwire.limits import Limits
from replworker.boot import Given, Order, main, tidy
from replworker.boot import kept_environments as kept_environments

_NO_PARENT = 255  # what multiprocess makes of a fork server that is gone
_JOIN_S = 5.0  # a process whose pidfd says it is dead is reaped by the fork server well before


class Local:
    """The launcher for this machine. `own` is a folder for the socket that the fork server takes orders at."""

    def __init__(
        self,
        own: Path,
        endpoint: str,
        interpreters: dict[str, str],
        env: dict[str, str],
        limits: Limits,
        folder: str,
        load_paths: tuple[str, ...],
        sandbox: Probed,
        foreign: Mapping[str, tuple[str, Runtime]],
        identities: tuple[Identity, ...],
        open_files: tuple[int, int],
        log: Callable[[str], None],
    ) -> None:
        """`open_files`: the limit for the workers, and the broker's own."""
        self._sandbox = sandbox
        self._interpreters = interpreters
        self._foreign = foreign
        self._identities = identities
        self._open_files, self._most_open = open_files
        self._common = (env, limits, folder, load_paths)
        self._endpoint = endpoint
        self._context = ForkServerContext()
        current_process()._config["tempdir"] = str(own)  # else it makes one of its own, and a kill leaves it there
        self._context.set_forkserver_preload(["replworker.boot"])
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._processes: dict[int, Any] = {}  # the spawner thread's
        self._pids: dict[int, int] = {}  # of workers that are not buried yet
        self._starting = threading.Lock()
        self._pidfds: dict[int, int] = {}
        self._doomed: set[int] = set()  # killed: their death is no news
        self._live: set[int] = set()
        self._died: list[Died] = []
        self._environments: dict[int, str] = {}  # that live workers are in
        self._removal = EnvironmentRemoval(folder, log)
        self._sweep_due = False
        self._closing = False
        self._folder = folder
        tidy(folder)
        _hide_main()
        become_subreaper()
        self._thread = threading.Thread(target=self._spawner, name="spawner", daemon=True)
        self._thread.start()

    def watch(self, register: Callable[[int, Callable[[], None]], None], drop: Callable[[int], None]) -> None:
        self._register, self._drop = register, drop
        register(self._wake, self._collect)

    # --- the spawner thread ---

    def _spawner(self) -> None:
        while (order := self._orders.get()) is not None:
            if not self._closing:
                order()

    def _report(self, result: Callable[[], None]) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def _start(self, worker: int, order: Order) -> None:
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
            self._report(lambda: self._gone(worker, cause))
            return
        self._processes[worker] = process
        self._report(lambda: self._started(worker, pidfd))

    def _reap(self, worker: int) -> None:
        process = self._processes.pop(worker)
        process.join(_JOIN_S)
        code = process.exitcode
        if code is not None:
            process.close()
        if code == _NO_PARENT:
            code = _adopted(self._pids[worker])
        self._report(lambda: self._gone(worker, f"the worker process {_ended(code)}"))

    # --- the loop's thread ---

    def spawn(self, worker: int, spec: Spec, token: str) -> None:
        interpreter = self._interpreters[spec.runtime]
        confine = self._sandbox.for_worker(worker, spec)
        foreign = self._foreign.get(spec.runtime)
        given = None if foreign is None else Given(foreign[1].arguments, foreign[1].reads)
        order = Order(
            self._endpoint,
            token,
            spec.runtime,
            spec.environment,
            interpreter,
            *self._common,
            confine,
            given,
            self._identities,
            spec.asker,
            self._open_files,
        )
        self._live.add(worker)
        if spec.environment is not None:
            self._environments[worker] = spec.environment
        if are_short(self._most_open):
            self._report(lambda: self._gone(worker, "could not be started: the broker has no file descriptor left"))
            return
        self._orders.put(lambda: self._start(worker, order))

    def renew(self) -> None:
        """The folder of the fork server's socket was made anew: another server makes another socket there."""
        self._orders.put(self._end_fork_server)

    def _end_fork_server(self) -> None:
        """In the spawner thread. The next start of a worker finds it dead, and starts another; workers go on."""
        pid = forkserver._forkserver._forkserver_pid
        if pid is None:
            return
        fd = os.pidfd_open(pid)
        self._signal(fd)
        death = select.poll()
        death.register(fd, select.POLLIN)
        death.poll(_JOIN_S * 1000)
        os.close(fd)

    def _collect(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._results:
            self._results.popleft()()
        if self._sweep_due:
            self.sweep()

    def _started(self, worker: int, pidfd: int) -> None:
        self._pidfds[worker] = pidfd
        self._register(pidfd, lambda: self._readable(worker))
        if worker in self._doomed:
            self._signal(pidfd)

    def _readable(self, worker: int) -> None:
        """Its pidfd says that it is dead."""
        pidfd = self._pidfds.pop(worker)
        self._drop(pidfd)
        os.close(pidfd)
        self.sweep()
        self._orders.put(lambda: self._reap(worker))

    def _gone(self, worker: int, cause: str) -> None:
        """It is buried: what it has left is known by a pid that nobody has any more."""
        self._live.discard(worker)
        self._pids.pop(worker, None)
        if self._environments.pop(worker, None) is not None:
            self._removal.on_exit(self._environments.values())
        self._sandbox.bury(worker)
        tidy(self._folder)
        if worker in self._doomed:
            self._doomed.discard(worker)
        else:
            self._died.append(Died(worker, cause))

    def kill(self, worker: int) -> None:
        if worker not in self._live:
            return
        self._doomed.add(worker)
        pidfd = self._pidfds.get(worker)
        if pidfd is not None:
            self._signal(pidfd)

    def remove_environment(self, environment: str) -> None:
        self._report(lambda: self._removal.request(environment, self._environments.values()))

    def removed(self) -> list[Removed]:
        return self._removal.removed()

    def know(self, identities: tuple[Identity, ...]) -> None:
        self._identities = identities

    @staticmethod
    def _signal(pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def died(self) -> list[Died]:
        died, self._died = self._died, []
        return died

    def sweep(self) -> None:
        """Kill what dead workers left behind. Also to be called on SIGCHLD."""
        self._sweep_due = not self._starting.acquire(blocking=False)
        if self._sweep_due:
            return  # a fork server may just be starting and is not to be taken for a stray: `_collect` comes back
        try:
            sweep(self._kept())
        finally:
            self._starting.release()

    def _own(self) -> set[int]:
        """Children that the broker started: the fork server and multiprocess's resource tracker."""
        pids = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
        return {pid for pid in pids if pid is not None}

    def _kept(self) -> set[int]:
        """No strays: our own, and workers, which become our children when their fork server dies, and go on."""
        return self._own() | set(self._pids.copy().values())

    def close(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._closing = True
        self._doomed |= self._live
        self._orders.put(None)
        for pidfd in self._pidfds.values():
            self._signal(pidfd)
        self._thread.join(deadline_s)
        self._collect()  # workers that had just been started
        for pidfd in self._pidfds.values():
            death = select.poll()  # `select` knows no descriptor beyond 1023
            death.register(pidfd, select.POLLIN)
            death.poll(max(0.0, end - time.monotonic()) * 1000)
            os.close(pidfd)
        # Without workers the fork server has nothing to do, and waiting for it to notice is a wait.
        for pid in self._own():
            os.kill(pid, signal.SIGKILL)
        while sweep(set()) and time.monotonic() < end:
            time.sleep(0.001)
        tidy(self._folder)
        resource_tracker._resource_tracker._pid = None  # reaped; from 3.12 on it would be waited for again at exit
        os.close(self._wake)


def _adopted(pid: int) -> int | None:
    """How a worker ended whose fork server had died: then it was our child. None where nobody can tell."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def _ended(code: int | None) -> str:
    if code is None:
        return "has ended; how, the fork server that started it would know, and that has died"
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _hide_main() -> None:
    """Keep the caller's `__main__` out of the workers: multiprocess would import it again in each of them."""
    main_module = sys.modules["__main__"]
    blank = types.ModuleType("__main__")
    blank.__dict__["original"] = main_module  # its frames may still run
    sys.modules["__main__"] = blank
