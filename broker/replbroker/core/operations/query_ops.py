"""Operations that the session's worker answers at once: about names, input, its state."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import READS
from replbroker.core.operations import views
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import VACANT, Session, WorkerRequest
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError

_encode = msgspec.json.Encoder().encode


class QueryOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalScheduler, opening: SessionFactory) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening

    def create_request(self, session: Session, peer: Peer, request: wire.Request, body: bytes) -> WorkerRequest:
        """A request to the worker, not sent yet. Raises Refusal when there are too many."""
        state = self._state
        if len(session.inflight) >= state.limits.max_waiting_reads:
            raise state.limit_error(
                "concurrency-limit-reached", "max-waiting-reads", "Too many requests wait in this session"
            )
        holder = state.holder(request, peer)
        state.quotas.check(READS, holder)
        ask = WorkerRequest(session, state.next_route(), peer, holder, request.id, request.op, body)
        state.quotas.charge(READS, holder)
        session.inflight[ask.route] = ask
        state.routes[ask.route] = ask
        return ask

    def send_or_defer(self, ask: WorkerRequest, now: float) -> None:
        """Send it, or hold it until the session has its worker."""
        session, state = ask.session, self._state
        when = now + (ask.wait_ms + state.limits.ask_timeout_ms) / 1000
        ask.deadline = state.deadlines.call_at(when, lambda at: self._timed_out(ask, at))
        if session.was_ready and session.worker is not None and session.start_deadline is None:
            self._evals.inflight.send(ask)
            return
        ask.eval_id = 0
        session.deferred.append(ask)
        if session.state == VACANT:
            self._evals.pool.acquire(session, now)

    def _timed_out(self, ask: WorkerRequest, now: float) -> None:
        ms = ask.wait_ms + self._state.limits.ask_timeout_ms
        self._state.reply_error(
            ask.peer, ask.request_id, RequestError("timeout", f"{ask.op}: no answer within {ms} ms")
        )
        self._evals.on_request_finished(ask, now)

    def forward(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """An operation that is the worker's alone: its answer goes back untouched."""
        assert request.session is not None
        session = self._state.lookup.get(request, peer)
        self._state.mark_active(session, now)
        self.send_or_defer(self.create_request(session, peer, request, body), now)

    def forward_anywhere(self, request: wire.Complete | wire.Lookup, peer: Peer, body: bytes, now: float) -> None:
        """The same, in a throw-away session when none is named."""
        if request.session is not None:
            self.forward(request, peer, body, now)
            return
        self._state.quotas.check(READS, self._state.holder(request, peer))  # before a session is opened for it
        session = self._opening.create(
            None, self._opening.worker_spec(request.runtime, peer), request, peer, now, ephemeral=True
        )
        self.send_or_defer(self.create_request(session, peer, request, body), now)

    def clear_bindings(self, request: wire.ClearBindings, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        if session.is_occupied:
            called = self._state.access.called(session, peer)
            raise RequestError("busy", f"session {called} runs an eval: interrupt it or wait")
        self.forward(request, peer, body, now)

    def info(self, request: wire.Info, peer: Peer, _: bytes, now: float) -> None:
        """The worker completes what the broker knows. A session without a worker gets none for this."""
        state = self._state
        session = state.lookup.get(request, peer)
        base = views.info(state, session, now)
        if session.worker is None or session.start_deadline is not None:
            state.reply(peer, request.id, status=["done"], info=base | {"pid": None, "variables": None})
            return
        ask = self.create_request(session, peer, request, b"")
        ask.body = _encode({"id": request.id, "op": "info", "variables": request.variables, "base": base})
        self.send_or_defer(ask, now)
