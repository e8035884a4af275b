"""Sessions that begin with, or move to, what another worker has: clones, and a change of environment.

Both keep what there is until the new worker has said that it can go on: a copy that fails leaves no half-made
session, an environment that cannot be used changes nothing.
"""

from __future__ import annotations

from replbroker.core.effects import DeleteSnapshot, Peer, WorkerSpec
from replbroker.core.operations.session_factory import SessionFactory, environment_spec
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import EvalTask, ReadyWaiter, Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.link import Outcome, SnapshotBody


class SessionMoves:
    """All of them, over one state."""

    def __init__(self, state: BrokerState, evals: EvalScheduler, opening: SessionFactory) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening
        evals.moved = self.commit
        evals.not_moved = self.rollback

    # --- clone ---

    def clone(self, request: wire.Clone, peer: Peer, body: bytes, now: float) -> None:
        """Have the source write its names down, in its turn; `dumped` goes on from there."""
        if request.target is None:
            raise RequestError("invalid-request", "clone requires session, the one to copy")
        if request.type == "heavy":
            raise RequestError("not-supported", "heavy clones, which copy the process itself, do not exist")
        if request.wait_ms is not None:
            raise RequestError("invalid-request", "clone does not take wait-ms: nobody could read its answer later")
        if (why := name_error("session", request.name)) is not None:
            raise RequestError("invalid-request", why)
        source, asker = self._state.lookup.get(request, peer), self._state.access.principal_of(peer)
        self._check_free(request, asker.identity)
        self._state.check_fields(peer, request)
        job = self._evals.submit(source, request, peer, body, now)
        job.asker = asker

    def _check_free(self, request: wire.Clone, identity: str) -> None:
        if self._state.sessions.find_by_name(self._state.lookup.key(request.name, request, identity)) is not None:
            raise RequestError("session-already-exists", f"Session already exists: {request.name}")

    def on_snapshot(self, job: EvalTask, dumped: SnapshotBody, now: float) -> None:
        """The source's names are in a file: open the session that begins with them."""
        request, peer, source = job.request, job.peer, job.session
        assert isinstance(request, wire.Clone)
        self._evals.on_eval_finished(job, Outcome.OK, now)
        try:
            self._check_free(request, job.asker.identity)
            # A snapshot is code of its owner's: it gets no directory to use another's rights on.
            own = job.asker.identity == source.owner
            cwd, spec = source.cwd if own else None, source.spec.for_principal(job.asker)
            target = self._opening.create(
                request.name, spec, request, peer or b"", now, cwd, source.env, asker=job.asker
            )
        except RequestError as refusal:
            self._state.effects.append(DeleteSnapshot(dumped.path))
            self._state.reply_error(peer, job.request_id, refusal)
            return
        target.cwd_needed = source.cwd_needed
        target.snapshot_path = dumped.path
        if not own and (source.cwd or spec.environment != source.spec.environment):
            target.notice = f"a copy of {source.owner}'s session has neither its directory nor its environment"
        self._state.emitter.emit_session_forked(target, source, dumped)
        old_words = isinstance(request, wire.CloneSession)
        target.waiters.append(ReadyWaiter(peer, job.request_id, created=True, copied=dumped, old_words=old_words))
        self._evals.pool.acquire(target, now)

    # --- environments ---

    def activate(self, request: wire.Env, peer: Peer, now: float) -> None:
        """Start a worker in the other environment; `moved` or `not_moved` tells how that went."""
        session = self._state.lookup.get(request, peer)
        if request.action == "activate" and request.path is None:
            raise RequestError("invalid-request", "env activate requires path")
        if session.spec.runtime != "python":
            raise RequestError("not-supported", f"a {session.spec.runtime} session has no python environment")
        if session.ephemeral:
            raise RequestError("invalid-request", "a throw-away session stays where it is")
        if session.is_in_use:
            called = self._state.access.called(session, peer)
            raise RequestError("busy", f"session {called} is in use: interrupt it or wait")
        spec = (
            WorkerSpec("python")
            if request.action == "deactivate"
            else environment_spec(self._state, request.path or "", peer)
        )
        stand_in = Session(session.id, session.name, spec, session.agent, session.limits, now)
        stand_in.spec = spec._replace(
            sandbox_overrides=session.spec.sandbox_overrides, workspace=session.spec.workspace
        )
        stand_in.cwd_needed, stand_in.owner_principal = session.cwd_needed, session.owner_principal
        stand_in.cwd, stand_in.env, stand_in.epoch = session.cwd, session.env, session.epoch + 1
        stand_in.replaces, session.replacement = session, stand_in
        stand_in.waiters.append(ReadyWaiter(peer, request.id, created=None))
        self._evals.pool.acquire(stand_in, now)

    def commit(self, stand_in: Session, now: float) -> None:
        """The worker in the other environment is ready: it is the session's from here on."""
        session = stand_in.replaces
        assert session is not None
        had_worker = session.was_ready and session.worker is not None
        self._evals.lose_worker(session, f"moved to {stand_in.spec}", now, word="session-reset", moving=True)
        session.spec, session.executable = stand_in.spec, stand_in.executable
        self._evals.pool.transfer(stand_in, session)
        session.replacement, session.lost_cause = None, None
        session.transition("take")
        session.transition("claimed")
        session.was_ready = True
        self._state.emitter.emit_session_moved(session)
        for job in session.waiting_evals():
            self._requeue_for_new_epoch(job, "lost" if had_worker else "kept", now)
        for waiter in stand_in.waiters:
            self._state.reply(
                waiter.peer,
                waiter.request_id,
                status=["done"],
                session=session.id,
                name=session.name,
                epoch=session.epoch,
                state="lost" if had_worker else "kept",
                environment=session.spec.environment,
                executable=session.executable,
            )
        self._evals.advance(session, now)

    def _requeue_for_new_epoch(self, job: EvalTask, state: str, now: float) -> None:
        """An eval that was sent while its session moved runs where it is now, unless it was for the epoch before."""
        session, request = job.session, job.request
        if not isinstance(request, wire.Eval) or request.expect_epoch is None:
            job.epoch = session.epoch
            return
        self._state.idempotency.forget(job)
        err = f"session {session.label} has moved to epoch {session.epoch}, from {request.expect_epoch}"
        self._evals.end_waiting(job, ["done", "error", "epoch-conflict"], err, now, state=state)

    def rollback(self, stand_in: Session, refusal: RequestError) -> None:
        """It came to nothing: the session is as it was."""
        session = stand_in.replaces
        assert session is not None
        session.replacement = None
        self._evals.pool.discard_worker(stand_in)
        for waiter in stand_in.waiters:
            self._state.reply_error(waiter.peer, waiter.request_id, refusal)
