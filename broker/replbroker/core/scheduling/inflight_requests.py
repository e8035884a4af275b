"""Requests in flight to a session's worker, evals excluded: sent, deferred until the worker can take them, failed."""

from __future__ import annotations

from replbroker.core.effects import ToWorker
from replbroker.core.limits.quotas import READS
from replbroker.core.sessions.eval_task import WorkerRequest
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.link import FrameKind, pack


class InflightRequests:
    """The requests in flight of all sessions."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def send(self, request: WorkerRequest) -> None:
        """Send a request to the worker that its session has."""
        session = request.session
        assert session.worker is not None
        frame = pack(FrameKind.REQUEST, request.body, epoch=session.epoch, eval=request.eval_id, route=request.route)
        self._state.effects.append(ToWorker(session.worker, frame))

    def flush(self, session: Session, eval_id: int) -> None:
        """Send the requests that were deferred until this eval started, or with 0 until the worker was assigned."""
        for request in [each for each in session.deferred if each.eval_id == eval_id]:
            session.deferred.remove(request)
            self.send(request)

    def finish(self, request: WorkerRequest) -> None:
        """Forget a request that was answered."""
        self._state.routes.pop(request.route, None)
        self._state.deadlines.cancel(request.deadline)
        if request.session.inflight.pop(request.route, None) is not None:
            self._state.quotas.release(READS, request.holder)
        if request in request.session.deferred:
            request.session.deferred.remove(request)

    def fail_all(self, session: Session, error: RequestError) -> None:
        """Answer everything that the session's worker will not answer any more, and the clients that wait for one."""
        for request in [*session.inflight.values()]:
            self.finish(request)
            self._state.reply_error(request.peer, request.request_id, error)
        for waiter in session.waiters:
            self._state.reply_error(waiter.peer, waiter.request_id, error)
        session.waiters.clear()
