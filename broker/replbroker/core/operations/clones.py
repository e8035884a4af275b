"""Clones: a session that begins with a copy of another one's variables.

The source writes a snapshot when it is its turn. A copy that fails leaves no half-made session.
"""

from __future__ import annotations

from replbroker.core.effects import DeleteSnapshot, Peer
from replbroker.core.operations.session_factory import SessionFactory, check_fields
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import EvalTask, ReadyWaiter
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.link import Outcome, SnapshotBody, SnapshotSource


class CloneOps:
    """Clones sessions."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, factory: SessionFactory) -> None:
        self._state = state
        self._scheduler = scheduler
        self._factory = factory

    def clone(self, request: wire.Clone, peer: Peer, body: bytes, now: float) -> None:
        """Have the source write a snapshot in its turn. `on_snapshot` goes on from there."""
        if self._state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if request.target is None:
            raise RequestError("invalid-request", "clone requires session, the one to copy")
        if request.type == "heavy":
            raise RequestError("not-supported", "heavy clones, which copy the process itself, do not exist")
        if request.wait_ms is not None:
            raise RequestError("invalid-request", "clone does not accept wait-ms: its answer could not be read later")
        if (why := name_error("session", request.name)) is not None:
            raise RequestError("invalid-request", why)
        source, principal = self._state.lookup.get(request, peer), self._state.access.principal_of(peer)
        self._check_free(request, principal.identity)
        check_fields(self._state, peer, request)
        task = self._scheduler.submit(source, request, peer, body, now)
        task.principal = principal

    def _check_free(self, request: wire.Clone, identity: str) -> None:
        key = self._state.lookup.key(request.name, request, identity)
        if self._state.sessions.find_by_name(key) is not None:
            raise RequestError("session-already-exists", f"Session already exists: {request.name}")

    def on_snapshot(self, task: EvalTask, snapshot: SnapshotBody, now: float) -> None:
        """Open the session that begins with a snapshot."""
        request, peer, source, principal = task.request, task.peer, task.session, task.principal
        assert isinstance(request, wire.Clone)
        assert principal is not None
        self._scheduler.lifecycle.on_eval_finished(task, Outcome.OK, now)
        try:
            self._check_free(request, principal.identity)
            # A snapshot is code of its owner: it gets no directory where it could use the rights of another user.
            own = principal.identity == source.owner
            cwd, spec = source.cwd if own else None, source.spec.for_principal(principal)
            target = self._factory.create(
                request.name, spec, request, peer or b"", now, cwd, source.env, principal=principal
            )
        except RequestError as error:
            self._state.effects.append(DeleteSnapshot(snapshot.path))
            self._state.reply_error(peer, task.request_id, error)
            return
        target.cwd_needed, target.checkpoint_files = source.cwd_needed, source.checkpoint_files
        target.snapshot = SnapshotSource(snapshot.path)  # the record of its creation is made after this
        if own and source.has_packages:
            target.has_packages, target.packages_of = True, source.id
        if not own and (source.cwd or spec.environment != source.spec.environment):
            target.notice = f"a copy of {source.owner}'s session has neither its directory nor its environment"
        self._state.emitter.emit_session_forked(target, source, snapshot)
        is_clone = not isinstance(request, wire.CloneSession)  # the former operation has another reply
        target.waiters.append(ReadyWaiter(peer, task.request_id, created=True, snapshot=snapshot, is_clone=is_clone))
        self._scheduler.pool.acquire(target, now)
