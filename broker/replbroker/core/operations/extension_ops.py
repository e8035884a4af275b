"""Operations that extensions contribute: admitted and bounded here, run by the shell."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec

from replbroker.core.effects import EndOperation, Peer, RunOperation
from replbroker.core.limits.quotas import OPERATIONS, Holder
from replbroker.core.state import BrokerState
from replwire.deadlines import Deadline
from replwire.faults import RequestError
from replwire.ops.extension import ExtensionRequest


class OperationOutcome(NamedTuple):
    """The end of an operation.

    Attributes:
        result: Its data as JSON, None if it failed.
        error: Fault code and message, if it failed.
    """

    result: bytes | None
    error: tuple[str, str] | None = None


class _RunningOperation(NamedTuple):
    peer: Peer
    request_id: str
    holder: Holder
    deadline: Deadline


class ExtensionOps:
    """Operations of extensions under way."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._running: dict[int, _RunningOperation] = {}
        self._numbers = itertools.count(1)

    def run(self, request: ExtensionRequest, peer: Peer, body: bytes, now: float) -> None:
        """Run an operation."""
        state = self._state
        holder = state.access.holder_of(request, peer)
        state.quotas.check(OPERATIONS, holder)
        state.quotas.charge(OPERATIONS, holder)
        number, end = next(self._numbers), now + state.limits.operation_time_ms / 1000
        deadline = state.deadlines.call_at(end, lambda _: self._on_timeout(number))
        self._running[number] = _RunningOperation(peer, request.id, holder, deadline)
        state.effects.append(RunOperation(number, request.op, bytes(body), state.access.principal_of(peer), end))

    def on_output(self, number: int, text: str) -> None:
        """Pass on output to the caller, unless it has left."""
        running = self._running.get(number)
        if running is not None and self._is_awaited(running):
            self._state.reply(running.peer, running.request_id, out=text)

    def on_ended(self, number: int, outcome: OperationOutcome) -> None:
        """Reply with the outcome, unless the operation's time was over before."""
        running = self._forget(number)
        if running is None or not self._is_awaited(running):
            return
        if outcome.error is not None:
            self._state.reply_error(running.peer, running.request_id, RequestError(*outcome.error))
        else:
            result = msgspec.Raw(outcome.result or b"null")
            self._state.reply(running.peer, running.request_id, status=["done"], result=result)

    def end_all(self) -> None:
        """Refuse what is under way: the broker ends."""
        for number in list(self._running):
            self._give_up(number, RequestError("shutdown", "server is shutting down"))

    def _on_timeout(self, number: int) -> None:
        self._give_up(number, self._state.limit_error("timeout", "operation-time-ms", "the operation took too long"))

    def _give_up(self, number: int, error: RequestError) -> None:
        running = self._forget(number)
        if running is None:
            return
        self._state.effects.append(EndOperation(number))
        if self._is_awaited(running):
            self._state.reply_error(running.peer, running.request_id, error)

    def _forget(self, number: int) -> _RunningOperation | None:
        running = self._running.pop(number, None)
        if running is not None:
            self._state.deadlines.cancel(running.deadline)
            self._state.quotas.release(OPERATIONS, running.holder)
        return running

    def _is_awaited(self, running: _RunningOperation) -> bool:
        return running.request_id in self._state.audit.pending_ids(running.peer)
