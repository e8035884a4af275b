"""Carries out the steps of extensions' operations: their requests, their output and their ends."""

from __future__ import annotations

import time

from replbroker.core.engine import BrokerCore
from replbroker.core_driver import CoreDriver
from replbroker.operation_runner import OperationRunner, OperationStep


class OperationHandler:
    """Handler of the steps that a runner reports.

    Args:
        core: The core.
        driver: Handler of the operations' connections.
        runner: The runner.
    """

    def __init__(self, core: BrokerCore, driver: CoreDriver, runner: OperationRunner) -> None:
        self._core = core
        self._driver = driver
        self._runner = runner

    def handle_steps(self) -> None:
        """Carry out the steps since the last call."""
        for step in self._runner.take_steps():
            self._handle(step)

    def _handle(self, step: OperationStep) -> None:
        peer, now = self._runner.peer_of(step.number), time.monotonic()
        if step.request is not None:
            self._handle_request(step.number, peer, step.request)
        elif step.output is not None:
            self._driver.apply(self._core.on_operation_output(step.number, step.output, now))
        else:
            if step.outcome is not None:
                self._driver.apply(self._core.on_operation_ended(step.number, step.outcome, now))
            self._driver.on_disconnect(peer)

    def _handle_request(self, number: int, peer: bytes, body: bytes) -> None:
        principal = self._runner.principal_of(number)
        if principal is None:  # it was given up meanwhile
            return
        if not self._core.has_identity(peer) and self._driver.on_connect(peer, *principal) is not None:
            self._runner.disconnect(peer)  # the caller has as many connections as it may have
            return
        self._driver.handle_request(peer, body)
