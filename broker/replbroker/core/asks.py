"""Requests that a session's worker answers, evals left out: sent, held until they can be, answered for when it goes."""

from __future__ import annotations

from replbroker.core.effects import ToWorker
from replbroker.core.quotas import READS
from replbroker.core.session import Ask, Session
from replbroker.core.state import State
from replwire.faults import Refusal
from replwire.link import Kind, pack


class Asks:
    """All of them, over one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def forward(self, ask: Ask) -> None:
        """Send it. The session has its worker."""
        session = ask.session
        assert session.worker is not None
        frame = pack(Kind.ASK, ask.body, epoch=session.epoch, eval=ask.eval_id, route=ask.route)
        self._state.out.append(ToWorker(session.worker, frame))

    def release(self, session: Session, eval_id: int) -> None:
        """Send what was held for this eval to start, or with 0 for the session to have its worker."""
        for ask in [ask for ask in session.held if ask.eval_id == eval_id]:
            session.held.remove(ask)
            self.forward(ask)

    def end(self, ask: Ask) -> None:
        """Forget one that was answered."""
        self._state.routes.pop(ask.route, None)
        self._state.deadlines.cancel(ask.deadline)
        if ask.session.asks.pop(ask.route, None) is not None:
            self._state.quotas.release(READS, ask.holder)
        if ask in ask.session.held:
            ask.session.held.remove(ask)

    def drop(self, session: Session, refusal: Refusal) -> None:
        """Answer everything that the session's worker will not answer any more, and who waits for a worker."""
        for ask in [*session.asks.values()]:
            self.end(ask)
            self._state.refuse(ask.peer, ask.request_id, refusal)
        for waiter in session.waiters:
            self._state.refuse(waiter.peer, waiter.request_id, refusal)
        session.waiters.clear()
