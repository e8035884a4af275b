"""Operations that the session's worker answers beside its evals: about names, input and state."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import READS
from replbroker.core.operations import views
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import WorkerRequest
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError

_encode = msgspec.json.Encoder().encode


class QueryOps:
    """Each operation takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, factory: SessionFactory) -> None:
        self._state = state
        self._scheduler = scheduler
        self._factory = factory

    def create_request(self, session: Session, peer: Peer, request: wire.Request, body: bytes) -> WorkerRequest:
        """Create a request to the worker, not sent yet.

        Args:
            session: The session.
            peer: The client to answer.
            request: Its request.
            body: The request as it goes to the worker.

        Raises:
            RequestError: Too many requests wait.
        """
        state = self._state
        if len(session.inflight) >= state.limits.max_waiting_reads:
            err = "Too many requests wait in this session"
            raise state.limit_error("concurrency-limit-reached", "max-waiting-reads", err)
        holder = state.access.holder_of(request, peer)
        state.quotas.check(READS, holder)
        query = WorkerRequest(session, state.new_route(), peer, holder, request, body)
        state.quotas.charge(READS, holder)
        session.inflight[query.route] = query
        state.routes[query.route] = query
        return query

    def send_or_defer(self, query: WorkerRequest, now: float) -> None:
        """Send a request, or defer it until the session has its worker."""
        session, state = query.session, self._state
        when = now + (query.wait_ms + state.limits.ask_timeout_ms) / 1000
        query.deadline = state.deadlines.call_at(when, lambda at: self._timed_out(query, at))
        if session.was_ready and session.worker is not None and session.start_deadline is None:
            self._scheduler.inflight.send(query)
            return
        query.eval_id = 0
        session.deferred.append(query)
        if session.needs_worker:
            self._scheduler.pool.acquire(session, now)

    def _timed_out(self, query: WorkerRequest, now: float) -> None:
        ms = query.wait_ms + self._state.limits.ask_timeout_ms
        error = RequestError("timeout", f"{query.op}: no answer within {ms} ms")
        self._state.reply_error(query.peer, query.request_id, error)
        self._scheduler.lifecycle.on_request_finished(query, now)

    def forward(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """Forward a request to the worker, whose reply goes back unchanged."""
        session = self._state.lookup.get(request, peer)
        session.last_active = now
        self.send_or_defer(self.create_request(session, peer, request, body), now)

    def get_file(self, request: wire.GetFile, peer: Peer, body: bytes, now: float) -> None:
        """Forward a request for a file: not for those who may only read the session, because code could read it."""
        self._state.access.check(self._state.lookup.get(request, peer), peer, changes=True)
        self.forward(request, peer, body, now)

    def forward_anywhere(self, request: wire.Complete | wire.Lookup, peer: Peer, body: bytes, now: float) -> None:
        """Forward a request to its session's worker, or without a session to that of an ephemeral one."""
        if request.session is not None:
            self.forward(request, peer, body, now)
            return
        self._state.quotas.check(READS, self._state.access.holder_of(request, peer))  # before a session is opened
        spec = self._factory.worker_spec(request.runtime, peer)
        session = self._factory.create(None, spec, request, peer, now, ephemeral=True)
        self.send_or_defer(self.create_request(session, peer, request, body), now)

    def clear_bindings(self, request: wire.ClearBindings, peer: Peer, body: bytes, now: float) -> None:
        """Delete the variables of a session without evals."""
        session = self._state.lookup.get(request, peer)
        if session.is_occupied:
            name = self._state.access.name_for(session, peer)
            raise RequestError("busy", f"session {name} runs an eval: interrupt it or wait")
        self.forward(request, peer, body, now)

    def info(self, request: wire.Info, peer: Peer, _: bytes, now: float) -> None:
        """Reply with details of a session. Its worker adds to what the broker knows; none is started for this."""
        state = self._state
        session = state.lookup.get(request, peer)
        base = views.info(state, session, now)
        if session.worker is None or session.start_deadline is not None:
            state.reply(peer, request.id, status=["done"], info=base | {"pid": None, "variables": None})
            return
        query = self.create_request(session, peer, request, b"")
        query.body = _encode({"id": request.id, "op": "info", "variables": request.variables, "base": base})
        self.send_or_defer(query, now)
