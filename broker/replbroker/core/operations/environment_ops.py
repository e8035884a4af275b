"""Operations about named environments: list them, remove one."""

from __future__ import annotations

from replbroker.core.effects import DeleteEnvironment, Peer
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.named_environments import EnvironmentRemoval, named_environments
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.replies import EnvironmentEntry

_MAX_NAMED = 10  # sessions in the sentence of an error


class EnvironmentOps:
    """Each operation takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, pool: WorkerPool) -> None:
        self._state = state
        self._pool = pool

    def ls_environments(self, request: wire.LsEnvironments, peer: Peer, _: bytes, __: float) -> None:
        """Reply with the environments that the sender may see, and their sessions."""
        state, used = self._state, named_environments(self._state.sessions)
        sees_all, identity = state.access.is_admin(peer), state.access.identity_of(peer)
        entries = [
            EnvironmentEntry(
                environment=each,
                owner=state.environments.owner_of(each),
                session_count=len(used.get(each, ())),
                sessions=self._visible(used.get(each, []), request, peer),
            )
            for each in sorted(state.environments.all_names(used))
            if sees_all or state.environments.owner_of(each) == identity
        ]
        state.reply(peer, request.id, status=["done"], environments=entries)

    def _visible(self, sessions: list[Session], request: wire.Request, peer: Peer) -> list[str]:
        """Return references to the sessions that a client may see."""
        state, identity = self._state, self._state.access.identity_of(peer)
        seen = [session for session in sessions if state.access.may_see(session, identity)]
        return sorted(state.lookup.reference(session, request, peer) for session in seen)

    def remove_environment(self, request: wire.RemoveEnvironment, peer: Peer, _: bytes, now: float) -> None:
        """Have an environment removed, which nobody can use from here on. `on_removed` replies."""
        state, used = self._state, named_environments(self._state.sessions)
        state.audit.set_session(peer, request.id, request.environment)
        environment = state.environments.qualify_for_removal(
            request.environment, state.access.identity_of(peer), used, is_admin=state.access.is_admin(peer)
        )
        if environment in used:
            raise self._in_use_error(environment, used[environment], request, peer)
        removal = EnvironmentRemoval(peer, request.id)
        when = now + state.limits.ask_timeout_ms / 1000
        removal.deadline = state.deadlines.call_at(when, lambda _: self._removal_timed_out(environment, removal))
        state.environments.removing[environment] = removal
        self._pool.discard_environment(environment, now)
        state.effects.append(DeleteEnvironment(environment))

    def _in_use_error(
        self, environment: str, sessions: list[Session], request: wire.Request, peer: Peer
    ) -> RequestError:
        named = self._visible(sessions, request, peer)
        others = len(sessions) - len(named)
        shown = [*named[:_MAX_NAMED], *([f"{others} of others"] if others else [])]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        return RequestError(
            "environment-in-use",
            f"sessions have environment {environment}: {', '.join(shown)}{more}",
            hint="close them, or switch them to another environment with `env`",
        )

    def _removal_timed_out(self, environment: str, removal: EnvironmentRemoval) -> None:
        """Answer the client. The name stays taken until the last process in the environment has ended."""
        err = f"a process in environment {environment} has not ended yet: it is removed when that has"
        self._reply_error(removal, RequestError("timeout", err))

    def _reply_error(self, removal: EnvironmentRemoval, error: RequestError) -> None:
        if removal.peer is not None:
            self._state.reply_error(removal.peer, removal.request_id, error)
            removal.peer = None

    def on_removed(self, environment: str, error: str | None) -> None:
        """Handle that an environment was removed; `error` is the reason why it was not."""
        state, removal = self._state, self._state.environments.removing.pop(environment)
        state.deadlines.cancel(removal.deadline)
        if error is not None:
            err = f"environment {environment} could not be removed: {error}"
            state.log(err)
            self._reply_error(removal, RequestError("environment-failed", err))
            return
        state.log(f"environment {environment} was removed")
        state.reply(removal.peer, removal.request_id, status=["done"], environment=environment)

    def finish(self) -> None:
        """Answer the clients that wait for a removal: the broker ends."""
        for removal in self._state.environments.removing.values():
            self._state.deadlines.cancel(removal.deadline)
            self._reply_error(removal, RequestError("shutdown", "server is shutting down"))
