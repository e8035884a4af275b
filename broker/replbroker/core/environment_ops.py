"""Operations about named environments: list them, remove one."""

from __future__ import annotations

from replbroker.core.effects import Peer, RemoveEnvironment
from replbroker.core.environments import Removal, named_environments
from replbroker.core.session import Session
from replbroker.core.staff import Staff
from replbroker.core.state import State
from replwire import ops as wire
from replwire.faults import Refusal
from replwire.replies import EnvironmentEntry

_MAX_NAMED = 10  # sessions in the sentence of a refusal


class EnvironmentOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, staff: Staff) -> None:
        self._state = state
        self._staff = staff

    def ls_environments(self, request: wire.LsEnvironments, peer: Peer, _: bytes, __: float) -> None:
        state, used = self._state, named_environments(self._state.sessions)
        sees_all, identity = state.access.is_admin(peer), state.access.of(peer)
        entries = [
            EnvironmentEntry(
                environment=each,
                owner=state.environments.owner(each),
                session_count=len(used.get(each, ())),
                sessions=self._visible(used.get(each, []), request, peer),
            )
            for each in sorted(state.environments.known(used))
            if sees_all or state.environments.owner(each) == identity
        ]
        state.say(peer, request.id, status=["done"], environments=entries)

    def _visible(self, sessions: list[Session], request: wire.Request, peer: Peer) -> list[str]:
        """What means them to this client, of those that it may see."""
        state, identity = self._state, self._state.access.of(peer)
        seen = [session for session in sessions if state.access.may_see(session, identity)]
        return sorted(state.lookup.reference(session, request, peer) for session in seen)

    def remove_environment(self, request: wire.RemoveEnvironment, peer: Peer, _: bytes, now: float) -> None:
        """Have it removed; `removed` answers. Until then nobody can ask for it."""
        state, used = self._state, named_environments(self._state.sessions)
        state.trail.about(peer, request.id, request.environment)
        environment = state.environments.to_remove(
            request.environment, state.access.of(peer), used, is_admin=state.access.is_admin(peer)
        )
        if environment in used:
            raise self._in_use(environment, used[environment], request, peer)
        removal = Removal(peer, request.id)
        when = now + state.limits.ask_timeout_ms / 1000
        removal.deadline = state.deadlines.at(when, lambda _: self._slow(environment, removal))
        state.environments.removing[environment] = removal
        self._staff.discard(environment, now)
        state.out.append(RemoveEnvironment(environment))

    def _in_use(self, environment: str, sessions: list[Session], request: wire.Request, peer: Peer) -> Refusal:
        named = self._visible(sessions, request, peer)
        shown = [
            *named[:_MAX_NAMED],
            *([f"{len(sessions) - len(named)} of others"] if len(named) < len(sessions) else []),
        ]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        return Refusal(
            "environment-in-use",
            f"sessions have environment {environment}: {', '.join(shown)}{more}",
            hint="close them, or move them away with `env`",
        )

    def _slow(self, environment: str, removal: Removal) -> None:
        """Whoever asked waits no longer; the name stays taken until the last process has ended."""
        err = f"a process in environment {environment} has not ended yet: it is removed when that has"
        self._refuse(removal, Refusal("timeout", err))

    def _refuse(self, removal: Removal, refusal: Refusal) -> None:
        if removal.peer is not None:
            self._state.refuse(removal.peer, removal.request_id, refusal)
            removal.peer = None

    def removed(self, environment: str, error: str | None) -> None:
        """It is out of the way, or `error` says why not."""
        state, removal = self._state, self._state.environments.removing.pop(environment)
        state.deadlines.cancel(removal.deadline)
        if error is not None:
            state.note(f"environment {environment} could not be removed: {error}")
            err = f"environment {environment} could not be removed: {error}"
            self._refuse(removal, Refusal("environment-failed", err))
            return
        state.note(f"environment {environment} was removed")
        state.say(removal.peer, removal.request_id, status=["done"], environment=environment)

    def finish(self) -> None:
        """The broker ends: nobody waits any longer."""
        for removal in self._state.environments.removing.values():
            self._state.deadlines.cancel(removal.deadline)
            self._refuse(removal, Refusal("shutdown", "server is shutting down"))
