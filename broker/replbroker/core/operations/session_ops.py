"""Operations about sessions: open, list, set, move, reset, close."""

from __future__ import annotations

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import SESSIONS, Holder
from replbroker.core.operations import views
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.operations.session_factory import SessionFactory, check_path
from replbroker.core.operations.session_moves import SessionMoves
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import CLOSED, ReadyWaiter, Session
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.identities import Principal

_MAX_SHARES = 100


class SessionOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalScheduler, opening: SessionFactory, running: EvalOps) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening
        self._running = running
        self._moves = SessionMoves(state, evals, opening)
        self.dumped = self._moves.on_snapshot

    def new_session(self, request: wire.NewSession, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        state.check_fields(peer, request)  # also where the session is there: the caller takes it for one as asked
        if request.trusted:
            raise RequestError(
                "not-supported", "trusted sessions share the server's own namespace; here each is isolated"
            )
        existing = None
        if request.name is not None:
            existing = state.lookup.find(request, peer, request.name) if request.if_exists == "reuse" else None
            if existing is None:
                self._check_new(request.name, request, peer)
        if existing is not None:
            state.access.check(existing, peer, changes=True)
            elsewhere = state.greetings.directory_notice(peer, existing, request.cwd)
            notices = filter(None, (elsewhere, *self._opening.find_mismatches(existing, request)))
            state.greetings.is_first(peer)
            state.reply(
                peer,
                request.id,
                status=["done"],
                session=existing.id,
                name=existing.name,
                epoch=existing.epoch,
                created=False,
                cwd=existing.directory,
                notice="; ".join(notices) or None,
            )
            return
        session = self._opening.create(
            request.name, self._opening.worker_spec(request.runtime, peer), request, peer, now, request.cwd, request.env
        )
        state.greetings.is_first(peer)
        session.waiters.append(ReadyWaiter(peer, request.id, created=True, cause=session.lost_cause))
        session.lost_cause = None  # its first answer is the one to this request
        self._evals.pool.acquire(session, now)

    def _check_new(self, name: str, request: wire.NewSession, peer: Peer) -> None:
        """Raises Refusal for what cannot be the name of a new session."""
        if (why := name_error("session", name)) is not None:
            raise RequestError("invalid-request", f'new-session "name": {why}')
        if (
            self._state.sessions.find_by_name(
                self._state.lookup.key(name, request, self._state.access.identity_of(peer))
            )
            is not None
        ):
            hint = "send `if-exists`: `reuse` to get the one there is"
            raise RequestError("session-already-exists", f"Session already exists: {name}", hint=hint)

    def clone(self, request: wire.Clone, peer: Peer, body: bytes, now: float) -> None:
        if self._state.draining:
            raise RequestError("shutdown", "server is shutting down")
        self._moves.clone(request, peer, body, now)

    def env(self, request: wire.Env, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        if session.spec.runtime != "python":
            raise RequestError("not-supported", f"a {session.spec.runtime} session has no python environment")
        if request.path is not None:
            check_path("path", request.path)
        if request.action in ("activate", "deactivate"):
            self._moves.activate(request, peer, now)
        elif request.action == "show":
            self._state.reply(
                peer,
                request.id,
                status=["done"],
                session=session.id,
                name=session.name,
                epoch=session.epoch,
                environment=session.spec.environment,
                executable=session.executable,
            )
        else:
            if request.action in ("add", "remove") and not request.packages:
                raise RequestError("invalid-request", f"env {request.action} requires packages")
            self._running.submit_request(request, peer, body, now)

    def set_mode(self, request: wire.SetMode, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        self._state.access.check(session, peer, changes=True)  # a reader cannot lock its writers out
        if request.to != session.mode:
            session.mode, session.mode_since, session.mode_reason = request.to, now, request.reason
        self._state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, session_mode=session.mode
        )

    def share(self, request: wire.Share, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        self._state.access.check_owner(session, peer)
        session.shares.pop(request.who, None)
        if request.level != "none":
            if len(session.shares) >= _MAX_SHARES:
                raise RequestError("invalid-request", f"a session is shared with at most {_MAX_SHARES}")
            session.shares[request.who] = request.level
        self._end_hidden(session, now)
        self._state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, shares=session.shares
        )

    def transfer(self, request: wire.HandOver, peer: Peer, _: bytes, now: float) -> None:
        """An owner offers and the other one takes: nobody finds a session of somebody's making among its own names."""
        session, access = self._state.lookup.get(request, peer), self._state.access
        takes = access.identity_of(peer) == request.who == session.offered_to
        if not takes:
            access.check_owner(session, peer)
        if takes or access.is_admin(peer):
            self._change_owner(session, peer, access.principal_of(peer) if takes else Principal(identity=request.who))
        else:
            session.offered_to = request.who if request.who != session.owner else None
        self._end_hidden(session, now)
        self._state.reply(
            peer,
            request.id,
            status=["done"],
            session=session.id,
            name=session.name,
            owner=session.owner,
            offered_to=session.offered_to,
            notice=self._environment_notice(session),
        )

    def _change_owner(self, session: Session, peer: Peer, to: Principal) -> None:
        """Raises Refusal when the other one has a session of this name. Who else had a share asks the new owner."""
        state, before = self._state, NameKey(session.owner, session.label, session.scope)
        after = before._replace(owner=to.identity)
        if after != before:
            if state.sessions.find_by_name(after) is not None:
                err = f"Session already exists: {to.identity} has one named {session.name}"
                raise RequestError("session-already-exists", err)
            epoch = session.epoch if session.name is None else state.records.next_epoch(after)
            # What waits was sent by who has other rights, and is answered in the epoch that it was sent for.
            if session.is_in_use or (session.inflight and epoch > session.epoch):
                raise RequestError(
                    "busy", f"session {state.access.called(session, peer)} is in use: interrupt it or wait"
                )
            state.quotas.transfer(SESSIONS, session.holder, Holder(to.identity, session.holder.agent))
            if epoch > session.epoch:
                session.set_epoch(epoch)  # who has had a session of this name knows its epochs
            state.sessions.transfer(session, to.identity)
            state.records.transfer(session, before)
        session.owner_principal, session.offered_to = to, None
        session.shares.clear()

    def _end_hidden(self, session: Session, now: float) -> None:
        """Answer what somebody waits for who may not see the session any more, as if it did not exist."""
        state = self._state
        for ask in [*session.inflight.values()]:
            if ask.peer is not None and state.access.level(session, ask.peer) == "none":
                refusal = RequestError("session-not-found", "the session is no longer shared with you")
                state.reply_error(ask.peer, ask.request_id, refusal)
                self._evals.on_request_finished(ask, now)

    @staticmethod
    def _environment_notice(session: Session) -> str | None:
        """What the next worker will not have of what an earlier owner named."""
        if not session.spec.was_chosen_by_another(session.owner_principal):
            return None
        return f"its next worker runs the broker's own python: {session.spec.environment} was not its owner's choice"

    def _is_visible(self, session: Session, peer: Peer) -> bool:
        return not session.ephemeral and self._state.access.level(session, peer) != "none"

    def reset(self, request: wire.Reset, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.lose_worker(session, f"reset{by}", now, word="session-reset")
        if session.state == CLOSED:  # it was a throw-away one: its eval is over, and so is the session
            self._state.reply(peer, request.id, status=["done", "session-closed"], session=session.id)
            return
        session.waiters.append(ReadyWaiter(peer, request.id, created=None))
        self._evals.pool.acquire(session, now)

    def close(self, request: wire.Close, peer: Peer, _: bytes, now: float) -> None:
        if request.target is None:
            raise RequestError("invalid-request", "close requires session")
        session = self._state.lookup.get(request, peer)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.close(session, f"closed{by}", now, asked=True)
        self._state.reply(peer, request.id, status=["done", "session-closed"], session=session.id, name=session.name)

    def ls_sessions(self, request: wire.LsSessions, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.session is not None:
            state.lookup.get(request, peer)  # routing does not depend on the op (REPLy scenario 106)
        entries = [
            views.session_entry(state, session, now, state.lookup.reference(session, request, peer))
            for session in state.sessions
            if self._is_visible(session, peer)
        ]
        state.reply(peer, request.id, status=["done"], sessions=entries)
