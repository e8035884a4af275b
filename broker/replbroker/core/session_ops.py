"""Operations about sessions: open, list, set, move, reset, close."""

from __future__ import annotations

from replbroker.core import views
from replbroker.core.effects import Peer
from replbroker.core.eval_ops import EvalOps, agent_of
from replbroker.core.evals import Evals
from replbroker.core.moves import Moves
from replbroker.core.opening import Opening
from replbroker.core.session import CLOSED, Waiter
from replbroker.core.state import State
from replwire import ops as wire
from replwire.faults import Refusal
from replwire.names import name_error


class SessionOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, evals: Evals, opening: Opening, running: EvalOps) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening
        self._running = running
        self._moves = Moves(state, evals, opening)
        self.dumped = self._moves.dumped

    def new_session(self, request: wire.NewSession, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.name is not None and (why := name_error("session", request.name)) is not None:
            raise Refusal("invalid-request", f'new-session "name": {why}')
        if request.trusted:
            raise Refusal("not-supported", "trusted sessions share the server's own namespace; here each is isolated")
        existing = state.sessions.find(request.name) if request.name is not None else None
        if existing is not None:
            if request.if_exists == "error":
                hint = "send `if-exists`: `reuse` to get the one there is"
                raise Refusal("session-already-exists", f"Session already exists: {request.name}", hint=hint)
            state.say(
                peer, request.id, status=["done"], session=existing.id, name=existing.name,
                epoch=existing.epoch, created=False,
            )  # fmt: skip
            return
        session = self._opening.open(request.name, request.runtime, request, now, request.cwd, request.env)
        session.waiters.append(Waiter(peer, request.id, created=True))
        self._evals.staff.take(session, now)
        state.roster()

    def clone(self, request: wire.Clone, peer: Peer, body: bytes, now: float) -> None:
        if self._state.draining:
            raise Refusal("shutdown", "server is shutting down")
        self._moves.clone(request, peer, body, agent_of(request, peer), now)

    def env(self, request: wire.Env, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        if session.spec.runtime != "python":
            raise Refusal("not-supported", f"a {session.spec.runtime} session has no python environment")
        if request.action in ("activate", "deactivate"):
            self._moves.activate(request, peer, now)
        elif request.action == "show":
            self._state.say(
                peer, request.id, status=["done"], session=session.id, name=session.name, epoch=session.epoch,
                environment=session.spec.environment, executable=session.executable,
            )  # fmt: skip
        else:
            if request.action in ("add", "remove") and not request.packages:
                raise Refusal("invalid-request", f"env {request.action} requires packages")
            self._running.run(request, peer, body, now)

    def set_mode(self, request: wire.SetMode, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        if request.to != session.mode:
            session.mode, session.mode_since, session.mode_reason = request.to, now, request.reason
        self._state.say(
            peer, request.id, status=["done"], session=session.id, name=session.name, session_mode=session.mode
        )  # fmt: skip

    def reset(self, request: wire.Reset, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.lose(session, f"reset{by}", now, word="session-reset")
        if session.state == CLOSED:  # it was a throw-away one: its eval is over, and so is the session
            self._state.say(peer, request.id, status=["done", "session-closed"], session=session.id)
            return
        session.waiters.append(Waiter(peer, request.id, created=None))
        self._evals.staff.take(session, now)

    def close(self, request: wire.Close, peer: Peer, _: bytes, now: float) -> None:
        key = request.name if isinstance(request, wire.CloseSession) else request.session or request.name
        if key is None:
            raise Refusal("invalid-request", "close requires session")
        session = self._state.sessions.get(key)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.close(session, f"closed{by}", now, asked=True)
        self._state.say(peer, request.id, status=["done", "session-closed"], session=session.id, name=session.name)

    def ls_sessions(self, request: wire.LsSessions, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.session is not None:
            state.sessions.get(request.session)  # routing does not depend on the op (REPLy scenario 106)
        entries = [views.session_entry(state, session, now) for session in state.sessions if not session.ephemeral]
        state.say(peer, request.id, status=["done"], sessions=entries)
