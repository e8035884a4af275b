"""Branches: a session that begins as a copy of another one, in the same sandbox and served by the same process.

The source has a checkpoint taken, or finds one, in its turn. Then its worker starts an interpreter from it for the
branch, which has a queue, epochs, output and history of its own.
"""

from __future__ import annotations

from replbroker.core.effects import Peer
from replbroker.core.operations.session_factory import SessionFactory, check_fields
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import EvalTask, ReadyWaiter
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.link import BranchedBody, Outcome


class BranchOps:
    """Branches sessions."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, factory: SessionFactory) -> None:
        self._state = state
        self._scheduler = scheduler
        self._factory = factory

    def branch(self, request: wire.Branch, peer: Peer, body: bytes, now: float) -> None:
        """Have the source find or take a checkpoint in its turn. `on_branched` goes on from there."""
        state = self._state
        if state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if request.wait_ms is not None:
            raise RequestError("invalid-request", "branch does not accept wait-ms: its answer could not be read later")
        if (why := name_error("session", request.name)) is not None:
            raise RequestError("invalid-request", why)
        source = state.lookup.get(request, peer)
        state.access.check_owner(source, peer)  # the branch is the owner's, and counts as one of the owner's sessions
        check_fields(state, peer, request)
        self._check(request, source)
        self._scheduler.submit(source, request, peer, body, now)

    def _check(self, request: wire.Branch, source: Session) -> None:
        """Raise RequestError if the name is taken, or the request must not have what the source's sandbox allows."""
        key = self._state.lookup.key(request.name, request, source.owner)
        if self._state.sessions.find_by_name(key) is not None:
            raise RequestError("session-already-exists", f"Session already exists: {request.name}")
        if self._factory.sandbox_overrides_for(source.spec, request) != source.spec.sandbox_overrides:
            err = f"the rule of {request.agent or 'this client'} is tighter than the sandbox of {source.label}"
            raise RequestError("forbidden", f"{err}, which a branch shares", hint="clone the session")

    def on_branched(self, task: EvalTask, body: BranchedBody, now: float) -> None:
        """Open the session that begins with a checkpoint of another."""
        request, peer, source = task.request, task.peer, task.session
        assert isinstance(request, wire.Branch)
        try:
            self._check(request, source)
            target = self._factory.create(
                request.name,
                source.spec,
                request,
                peer or b"",
                now,
                source.cwd,
                source.env,
                principal=source.owner_principal,
            )
        except RequestError as error:
            self._scheduler.lifecycle.on_eval_finished(task, Outcome.ERROR, now)
            self._state.reply_error(peer, task.request_id, error)
            return
        target.branch_of, target.shares = source.id, dict(source.shares)
        target.cwd_needed, target.cwd_unavailable = source.cwd_needed, source.cwd_unavailable
        if source.has_packages:
            target.has_packages, target.packages_of = True, source.id
        self._state.emitter.emit_session_branched(target, source, body)
        target.waiters.append(ReadyWaiter(peer, task.request_id, created=True, branched=body))
        self._scheduler.pool.branch(source, target, body.checkpoint, now)
        self._scheduler.lifecycle.on_eval_finished(task, Outcome.OK, now)
