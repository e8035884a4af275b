"""Operations that the session's worker answers at once: about names, input, its state."""

from __future__ import annotations

import msgspec

from replbroker.core import views
from replbroker.core.effects import Peer
from replbroker.core.evals import Evals
from replbroker.core.opening import Opening
from replbroker.core.quotas import READS
from replbroker.core.session import VACANT, Ask, Session
from replbroker.core.state import State
from replwire import ops as wire
from replwire.faults import Refusal

_encode = msgspec.json.Encoder().encode


class AskOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, evals: Evals, opening: Opening) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening

    def new(self, session: Session, peer: Peer, request: wire.Request, body: bytes) -> Ask:
        """A request to the worker, not sent yet. Raises Refusal when there are too many."""
        state = self._state
        if len(session.asks) >= state.limits.max_waiting_reads:
            raise state.full("concurrency-limit-reached", "max-waiting-reads", "Too many requests wait in this session")
        holder = state.holder(request, peer)
        state.quotas.check(READS, holder)
        ask = Ask(session, state.next_route(), peer, holder, request.id, request.op, body)
        state.quotas.charge(READS, holder)
        session.asks[ask.route] = ask
        state.routes[ask.route] = ask
        return ask

    def post(self, ask: Ask, now: float) -> None:
        """Send it, or hold it until the session has its worker."""
        session, state = ask.session, self._state
        when = now + (ask.wait_ms + state.limits.ask_timeout_ms) / 1000
        ask.deadline = state.deadlines.at(when, lambda at: self._unanswered(ask, at))
        if session.claimed_once and session.worker is not None and session.start_deadline is None:
            self._evals.asks.forward(ask)
            return
        ask.eval_id = 0
        session.held.append(ask)
        if session.state == VACANT:
            self._evals.staff.take(session, now)

    def _unanswered(self, ask: Ask, now: float) -> None:
        ms = ask.wait_ms + self._state.limits.ask_timeout_ms
        self._state.refuse(ask.peer, ask.request_id, Refusal("timeout", f"{ask.op}: no answer within {ms} ms"))
        self._evals.asked(ask, now)

    def ask(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """An operation that is the worker's alone: its answer goes back untouched."""
        assert request.session is not None
        session = self._state.lookup.get(request, peer)
        self._state.touch(session, now)
        self.post(self.new(session, peer, request, body), now)

    def ask_anywhere(self, request: wire.Complete | wire.Lookup, peer: Peer, body: bytes, now: float) -> None:
        """The same, in a throw-away session when none is named."""
        if request.session is not None:
            self.ask(request, peer, body, now)
            return
        self._state.quotas.check(READS, self._state.holder(request, peer))  # before a session is opened for it
        session = self._opening.open(
            None, self._opening.spec(request.runtime, peer), request, peer, now, ephemeral=True
        )
        self.post(self.new(session, peer, request, body), now)

    def clear_bindings(self, request: wire.ClearBindings, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        if session.occupied:
            called = self._state.access.called(session, peer)
            raise Refusal("busy", f"session {called} runs an eval: interrupt it or wait")
        self.ask(request, peer, body, now)

    def info(self, request: wire.Info, peer: Peer, _: bytes, now: float) -> None:
        """The worker completes what the broker knows. A session without a worker gets none for this."""
        state = self._state
        session = state.lookup.get(request, peer)
        base = views.info(state, session, now)
        if session.worker is None or session.start_deadline is not None:
            state.say(peer, request.id, status=["done"], info=base | {"pid": None, "variables": None})
            return
        ask = self.new(session, peer, request, b"")
        ask.body = _encode({"id": request.id, "op": "info", "variables": request.variables, "base": base})
        self.post(ask, now)
