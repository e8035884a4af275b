"""How a session begins: which runtime, under which rule, within which limits."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer, Spec
from replbroker.core.environments import named_environments
from replbroker.core.quotas import SESSIONS, Holder
from replbroker.core.registry import NameKey
from replbroker.core.session import Session
from replbroker.core.state import State
from replwire.faults import Refusal
from replwire.identities import Asker
from replwire.limits import Limits
from replwire.names import path_error, scope_of
from replwire.ops import Opens, Request
from replwire.policy import Tighter

_CLOSE = "close a session that is not needed (`ls-sessions`, `close`): open ones do not end by waiting"


def check_path(label: str, path: str) -> None:
    """Raises Refusal `invalid-request` for a text that is no path, or leads through the kernel's own links."""
    if (why := path_error(label, path)) is not None:
        raise Refusal("invalid-request", why)


def environment_spec(state: State, path: str, peer: Peer) -> Spec:
    """A python environment as it is asked for, by path or `@NAME`. Raises Refusal."""
    check_path("environment", path)
    if path.startswith("@"):
        environment = state.environments.qualified(path, state.access.of(peer))
        state.environments.check_room(environment, named_environments(state.sessions), state.limits)
        return Spec("python", environment)
    if not path.startswith("/"):
        raise Refusal("invalid-request", "environment: an absolute path, or @NAME for one that the broker keeps")
    return Spec("python", path.rstrip("/") or "/")


class Opening:
    """Opens sessions over one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def open(
        self,
        name: str | None,
        spec: Spec,
        request: Request,
        peer: Peer,
        now: float,
        cwd: str | None = None,
        env: list[str] | None = None,
        *,
        ephemeral: bool = False,
        asker: Asker | None = None,
    ) -> Session:
        """A session without a worker, registered; what `request` asks of its sandbox is added to `spec`. Raises
        Refusal."""
        state = self._state
        state.check_fields(peer, request)
        if state.draining:
            raise Refusal("shutdown", "server is shutting down")
        state.setup.sandbox.require()
        if isinstance(request, Opens):
            spec = spec._replace(tighter=state.setup.sandbox.tighter(request))
        if cwd is not None:
            check_path("cwd", cwd)
            if not cwd.startswith("/"):
                raise Refusal("invalid-request", "cwd: must be an absolute path")
        if any("=" not in pair[1:] or "\0" in pair for pair in env or ()):
            raise Refusal("invalid-request", "env: each entry is NAME=VALUE")
        asker = state.access.asker(peer) if asker is None else asker
        owner = asker.identity
        state.quotas.check(SESSIONS, Holder(owner, request.agent or ""), hint=_CLOSE)
        self._check_rule(spec, request, owner)
        state.memory.check(owner)
        session = Session(state.setup.new_id(), name, spec, request.agent, self._limits(request), now)
        session.owner, session.asker = owner, asker
        session.scope = scope_of(name, request.project, request.agent)
        if cwd is not None and not state.setup.sandbox.late_folders:
            session.spec = spec._replace(folder=cwd)
        session.cwd_needed = not isinstance(request, Opens) or request.cwd_needed
        session.cwd, session.env, session.ephemeral = cwd, env or [], ephemeral
        state.sessions.add(session)
        state.quotas.charge(SESSIONS, session.holder)
        if name is not None:
            session.lost = state.sessions.gone(NameKey(owner, name, session.scope))
        state.records.opened(session)
        state.news.created(session)
        return session

    def spec(self, runtime: str | None, peer: Peer) -> Spec:
        """What a request's `runtime` means. Raises Refusal."""
        known = self._state.setup.runtimes
        if runtime is None:
            return Spec(known[0])
        if runtime.startswith(("/", "@")):
            return environment_spec(self._state, runtime, peer)
        if runtime not in known:
            raise Refusal("runtime-not-allowed", f"no runtime {runtime[:80]} here: {', '.join(known)}")
        return Spec(runtime)

    def otherwise(self, session: Session, request: Opens) -> list[str]:
        """What a caller is to know who asks for what this session, which is there already, was not opened with."""
        told = self._other_runtime(session, request.runtime)
        fields = [] if {*request.env} <= {*session.env} else ["`env`"]
        if (asked := request.tighter()) is not None:
            for field in msgspec.structs.fields(asked):
                value = getattr(asked, field.name)
                one = Tighter(**{field.name: value})
                if value is not None and not self._state.setup.sandbox.has_all(one, session.spec.tighter):
                    fields.append(f"`{field.name.replace('_', '-')}`")
        if fields:
            more = f"session {session.label} was opened otherwise: {', '.join(fields)} count when a session is opened"
            return [*told, more]
        return told

    @staticmethod
    def _other_runtime(session: Session, runtime: str | None) -> list[str]:
        has = session.spec
        if runtime is None or (runtime.rstrip("/") or "/") in (has.runtime, has.environment):
            return []
        if runtime.startswith("@") and has.environment == f"@{session.owner}/{runtime[1:]}":
            return []
        return [f"session {session.label} runs {has}; `runtime` counts when a session is opened"]

    def _check_rule(self, spec: Spec, request: Request, owner: str) -> None:
        rule = self._state.rule(request)
        if rule is None:
            return
        if rule.allowed_runtimes and spec.runtime not in rule.allowed_runtimes:
            allowed = ", ".join(rule.allowed_runtimes)
            raise Refusal("runtime-not-allowed", f"{rule.name} may open {allowed} sessions, not {spec.runtime}")
        held = sum((each.agent, each.owner) == (request.agent, owner) for each in self._state.sessions)
        if held >= rule.max_sessions:
            err = f"{rule.name} has as many sessions as it may (max-sessions = {rule.max_sessions}): close one"
            raise Refusal(
                "session-limit-reached", err, limit="max-sessions", limit_value=rule.max_sessions, hint=_CLOSE
            )

    def _limits(self, request: Request) -> Limits:
        limits, rule = self._state.limits, self._state.rule(request)
        if rule is None or rule.max_output_bytes >= limits.max_output_bytes:
            return limits
        return msgspec.structs.replace(limits, max_output_bytes=rule.max_output_bytes)
