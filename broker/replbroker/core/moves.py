"""Sessions that begin with, or move to, what another worker has: clones, and a change of environment.

Both keep what there is until the new worker has said that it can go on: a copy that fails leaves no half-made
session, an environment that cannot be used changes nothing.
"""

from __future__ import annotations

from replbroker.core.effects import Discard, Peer, Spec
from replbroker.core.evals import Evals
from replbroker.core.opening import Opening, environment_spec
from replbroker.core.session import Job, Session, Waiter
from replbroker.core.state import State
from replwire import ops as wire
from replwire.faults import Refusal
from replwire.link import Dumped, Outcome
from replwire.names import name_error


class Moves:
    """All of them, over one state."""

    def __init__(self, state: State, evals: Evals, opening: Opening) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening
        evals.moved = self.moved
        evals.not_moved = self.not_moved

    # --- clone ---

    def clone(self, request: wire.Clone, peer: Peer, body: bytes, now: float) -> None:
        """Have the source write its names down, in its turn; `dumped` goes on from there."""
        if request.target is None:
            raise Refusal("invalid-request", "clone requires session, the one to copy")
        if request.type == "heavy":
            raise Refusal("not-supported", "heavy clones, which copy the process itself, do not exist")
        if request.wait_ms is not None:
            raise Refusal("invalid-request", "clone does not take wait-ms: nobody could read its answer later")
        if (why := name_error("session", request.name)) is not None:
            raise Refusal("invalid-request", why)
        source, asker = self._state.lookup.get(request, peer), self._state.access.asker(peer)
        self._check_free(request, asker.identity)
        self._state.check_fields(peer, request)
        job = self._evals.submit(source, request, peer, body, now)
        job.asker = asker

    def _check_free(self, request: wire.Clone, identity: str) -> None:
        if self._state.sessions.named(self._state.lookup.key(request.name, request, identity)) is not None:
            raise Refusal("session-already-exists", f"Session already exists: {request.name}")

    def dumped(self, job: Job, dumped: Dumped, now: float) -> None:
        """The source's names are in a file: open the session that begins with them."""
        request, peer, source = job.request, job.peer, job.session
        assert isinstance(request, wire.Clone)
        self._evals.ended(job, Outcome.OK, now)
        try:
            self._check_free(request, job.asker.identity)
            # A snapshot is code of its owner's: it gets no directory to use another's rights on.
            own = job.asker.identity == source.owner
            cwd, spec = source.cwd if own else None, source.spec.for_asker(job.asker)
            target = self._opening.open(request.name, spec, request, peer or b"", now, cwd, source.env, asker=job.asker)
        except Refusal as refusal:
            self._state.out.append(Discard(dumped.path))
            self._state.refuse(peer, job.request_id, refusal)
            return
        target.cwd_needed = source.cwd_needed
        target.restore = dumped.path
        if not own and (source.cwd or spec.environment != source.spec.environment):
            target.notice = f"a copy of {source.owner}'s session has neither its directory nor its environment"
        self._state.news.forked(target, source, dumped)
        old_words = isinstance(request, wire.CloneSession)
        target.waiters.append(Waiter(peer, job.request_id, created=True, copied=dumped, old_words=old_words))
        self._evals.staff.take(target, now)

    # --- environments ---

    def activate(self, request: wire.Env, peer: Peer, now: float) -> None:
        """Start a worker in the other environment; `moved` or `not_moved` tells how that went."""
        session = self._state.lookup.get(request, peer)
        if request.action == "activate" and request.path is None:
            raise Refusal("invalid-request", "env activate requires path")
        if session.spec.runtime != "python":
            raise Refusal("not-supported", f"a {session.spec.runtime} session has no python environment")
        if session.ephemeral:
            raise Refusal("invalid-request", "a throw-away session stays where it is")
        if session.in_use:
            called = self._state.access.called(session, peer)
            raise Refusal("busy", f"session {called} is in use: interrupt it or wait")
        spec = (
            Spec("python")
            if request.action == "deactivate"
            else environment_spec(self._state, request.path or "", peer)
        )
        stand_in = Session(session.id, session.name, spec, session.agent, session.limits, now)
        stand_in.spec = spec._replace(tighter=session.spec.tighter, folder=session.spec.folder)
        stand_in.cwd_needed, stand_in.asker = session.cwd_needed, session.asker
        stand_in.cwd, stand_in.env, stand_in.epoch = session.cwd, session.env, session.epoch + 1
        stand_in.stands_for, session.stand_in = session, stand_in
        stand_in.waiters.append(Waiter(peer, request.id, created=None))
        self._evals.staff.take(stand_in, now)

    def moved(self, stand_in: Session, now: float) -> None:
        """The worker in the other environment is ready: it is the session's from here on."""
        session = stand_in.stands_for
        assert session is not None
        had_worker = session.claimed_once and session.worker is not None
        self._evals.lose(session, f"moved to {stand_in.spec}", now, word="session-reset", moving=True)
        session.spec, session.executable = stand_in.spec, stand_in.executable
        self._evals.staff.hand_over(stand_in, session)
        session.stand_in, session.lost = None, None
        session.move("take")
        session.move("claimed")
        session.claimed_once = True
        self._state.news.moved(session)
        for job in session.waiting_jobs():
            self._take_along(job, "lost" if had_worker else "kept", now)
        for waiter in stand_in.waiters:
            self._state.say(
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
        self._evals.go_on(session, now)

    def _take_along(self, job: Job, state: str, now: float) -> None:
        """An eval that was sent while its session moved runs where it is now, unless it was for the epoch before."""
        session, request = job.session, job.request
        if not isinstance(request, wire.Eval) or request.expect_epoch is None:
            job.epoch = session.epoch
            return
        self._state.keys.drop(job)
        err = f"session {session.label} has moved to epoch {session.epoch}, from {request.expect_epoch}"
        self._evals.end_waiting(job, ["done", "error", "epoch-conflict"], err, now, state=state)

    def not_moved(self, stand_in: Session, refusal: Refusal) -> None:
        """It came to nothing: the session is as it was."""
        session = stand_in.stands_for
        assert session is not None
        session.stand_in = None
        self._evals.staff.dismiss(stand_in)
        for waiter in stand_in.waiters:
            self._state.refuse(waiter.peer, waiter.request_id, refusal)
