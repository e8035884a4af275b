"""Requests that a session's worker answers, evals left out: sent, held until they can be, answered for when it goes."""

from __future__ import annotations

from replbroker.core.effects import ToWorker
from replbroker.core.limits.quotas import READS
from replbroker.core.sessions.session import Session, WorkerRequest
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.link import FrameKind, pack


class InflightRequests:
    """All of them, over one state."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def send(self, ask: WorkerRequest) -> None:
        """Send it. The session has its worker."""
        session = ask.session
        assert session.worker is not None
        frame = pack(FrameKind.REQUEST, ask.body, epoch=session.epoch, eval=ask.eval_id, route=ask.route)
        self._state.effects.append(ToWorker(session.worker, frame))

    def flush(self, session: Session, eval_id: int) -> None:
        """Send what was held for this eval to start, or with 0 for the session to have its worker."""
        for ask in [ask for ask in session.deferred if ask.eval_id == eval_id]:
            session.deferred.remove(ask)
            self.send(ask)

    def finish(self, ask: WorkerRequest) -> None:
        """Forget one that was answered."""
        self._state.routes.pop(ask.route, None)
        self._state.deadlines.cancel(ask.deadline)
        if ask.session.inflight.pop(ask.route, None) is not None:
            self._state.quotas.release(READS, ask.holder)
        if ask in ask.session.deferred:
            ask.session.deferred.remove(ask)

    def fail_all(self, session: Session, refusal: RequestError) -> None:
        """Answer everything that the session's worker will not answer any more, and who waits for a worker."""
        for ask in [*session.inflight.values()]:
            self.finish(ask)
            self._state.reply_error(ask.peer, ask.request_id, refusal)
        for waiter in session.waiters:
            self._state.reply_error(waiter.peer, waiter.request_id, refusal)
        session.waiters.clear()
