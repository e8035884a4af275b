"""The broker's event loop: receive, pass to the core, carry out effects, sleep until something comes or is due."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from replbroker.core.engine import BrokerCore
from replbroker.core_driver import CoreDriver
from replbroker.guarded_steps import GuardedSteps
from replbroker.loop_parts import DescriptorSource, TimedPart
from replbroker.signals import Signals
from replbroker.transports.client_router import ClientRouter
from replbroker.transports.worker_router import WorkerRouter
from replwire.deadlines import GapDetector

_POLLIN = int(zmq.POLLIN)
_MAX_SLEEP_S = 3600.0
_MAX_SLEEP_RUNNING_S = 1.0  # while evals run: a suspend of the machine is measured as exactly as this


class BrokerLoop:
    """Event loop with one thread and one wait.

    Args:
        core: The core.
        driver: Carries out the core's effects.
        workers: Frames of workers.
        clients: Requests of ZeroMQ clients.
        steps: Guards against a lack of memory or descriptors.
    """

    def __init__(
        self,
        core: BrokerCore,
        driver: CoreDriver,
        workers: WorkerRouter,
        clients: ClientRouter,
        steps: GuardedSteps,
    ) -> None:
        self._core = core
        self._driver = driver
        self._workers = workers
        self._clients = clients
        self._steps = steps
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._workers_drained_at = time.monotonic()  # when no frame of a worker was left to read

    def add_timed(self, parts: Sequence[TimedPart]) -> None:
        """Flush these parts when they are due, after the core's own deadlines."""
        self._steps.add(self._core.next_deadline, lambda now: self._driver.tick(now, self._workers_drained_at))
        for part in parts:
            self._steps.add(partial(getattr, part, "due"), part.flush)

    def add_source(self, source: DescriptorSource) -> None:
        """Poll this part's descriptors."""
        source.register_descriptors(self.register, self._unregister)

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call a handler whenever this descriptor is readable."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unregister(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def run(self, signals: Signals) -> str:
        """Serve until the core stops the broker.

        Args:
            signals: Signals of this process, to be handled in the loop.

        Returns:
            Why the broker ends.
        """
        self.register(signals.fd, lambda: self._driver.handle_signals(signals))
        self._driver.start()
        clients, workers = self._clients.socket, self._workers.socket
        # libzmq signals messages at edges, and does not signal at all what it takes in while sending; its own poll
        # knows. Everything that is not hot is behind the one descriptor of the epoll.
        items: Any = [(workers, _POLLIN), (clients, _POLLIN), (self._epoll.fileno(), _POLLIN)]
        gaps = GapDetector(time.monotonic(), time.thread_time())
        while self._driver.exit_reason is None:
            wait_ms = self._timeout_ms()
            gaps.before_sleep(wait_ms / 1000, time.monotonic(), time.thread_time())
            ready = zmq.zmq_poll(items, wait_ms)
            if gap := gaps.after_sleep(time.monotonic(), time.thread_time()):
                self._core.on_suspended(gap)
            if not ready or ready[0][0] is not workers:
                self._workers_drained_at = time.monotonic()
            for source, _ in ready:
                if source is workers:
                    self._steps.run(self._receive_from_worker)
                elif source is clients:
                    self._steps.run(self._receive_from_client)
                else:
                    self._steps.run(self._poll_descriptors)
            if self._clients.has_backlog:
                self._steps.run(self._clients.retry)
            self._steps.run_due(time.monotonic())
        self._driver.flush_all_events()
        return self._driver.exit_reason

    def _timeout_ms(self) -> int:
        due = self._steps.next_due()
        longest = _MAX_SLEEP_RUNNING_S if self._core.has_running_evals else _MAX_SLEEP_S
        return math.ceil(1000 * (longest if due is None else min(longest, max(0.0, due - time.monotonic()))))

    def _receive_from_worker(self) -> None:
        received = self._workers.receive()
        if received is not None:
            self._driver.handle_worker_frame(*received)

    def _receive_from_client(self) -> None:
        received = self._clients.receive()
        if received is not None:
            self._driver.handle_request(*received)

    def _poll_descriptors(self) -> None:
        for fd, _ in self._epoll.poll(0):
            handler = self._handlers.get(fd)
            if handler is not None:
                self._steps.run(handler)
        self._driver.handle_launcher_results()

    def close(self) -> None:
        """Stop polling."""
        self._epoll.close()
