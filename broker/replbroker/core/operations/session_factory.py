"""The creation of sessions: their runtime, the agent's rule, limits and sandbox."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer, WorkerSpec
from replbroker.core.limits.quotas import SESSIONS, Holder
from replbroker.core.sessions.named_environments import named_environments
from replbroker.core.sessions.session import Session
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.identifiers import path_error, scope_of
from replwire.identities import Principal
from replwire.limits import Limits
from replwire.ops import OpensSession, Request
from replwire.policy import SandboxOverrides
from replwire.requests import unknown_field_message

_CLOSE_HINT = "`ls-sessions` lists sessions and `close` ends one; open sessions do not end by waiting"


def check_path(label: str, path: str) -> None:
    """Raise RequestError `invalid-request` for a text that is no path, or leads through the kernel's own links."""
    if (why := path_error(label, path)) is not None:
        raise RequestError("invalid-request", why)


def check_fields(state: BrokerState, peer: Peer, request: Request) -> None:
    """Raise RequestError for an unknown field in a request that opens a session.

    It might be a restriction that is misspelled, or of a newer protocol.
    """
    if state.ignored_fields and (ignored := state.ignored_fields.get((peer, request.id))):
        err = unknown_field_message(request.op, ignored[0])
        raise RequestError("invalid-request", err, hint="nothing was opened")


def environment_spec(state: BrokerState, path: str, peer: Peer) -> WorkerSpec:
    """Return the spec of a Python environment, given by path or `@NAME`. Raises RequestError."""
    check_path("environment", path)
    if path.startswith("@"):
        environment = state.environments.qualify(path, state.access.identity_of(peer))
        state.environments.check_room(environment, named_environments(state.sessions), state.limits)
        return WorkerSpec("python", environment)
    if not path.startswith("/"):
        raise RequestError("invalid-request", "environment: an absolute path, or @NAME for one that the broker keeps")
    return WorkerSpec("python", path.rstrip("/") or "/")


class SessionFactory:
    """Creates sessions."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def create(
        self,
        name: str | None,
        spec: WorkerSpec,
        request: Request,
        peer: Peer,
        now: float,
        cwd: str | None = None,
        env: list[str] | None = None,
        *,
        ephemeral: bool = False,
        principal: Principal | None = None,
    ) -> Session:
        """Create and register a session without a worker.

        Args:
            name: Its name, which is free.
            spec: The runtime and environment of its workers. Sandbox overrides of the request are added.
            request: The request that opens it.
            peer: The sender of the request.
            now: Seconds, monotonic.
            cwd: The working directory.
            env: Environment variables, as NAME=VALUE.
            ephemeral: It ends with its last eval.
            principal: The owner, if that is not the sender.

        Raises:
            RequestError: A limit, a rule or the sandbox does not allow it.
        """
        state, config = self._state, self._state.config
        check_fields(state, peer, request)
        if state.draining:
            raise RequestError("shutdown", "server is shutting down")
        config.sandbox.require()
        spec = spec._replace(sandbox_overrides=self.sandbox_overrides_for(spec, request))
        self._check_place(cwd, env)
        principal = state.access.principal_of(peer) if principal is None else principal
        owner = principal.identity
        state.quotas.check(SESSIONS, Holder(owner, request.agent or ""), hint=_CLOSE_HINT)
        self._check_rule(spec, request, owner)
        state.memory.check(owner)
        session = Session(config.new_id(), name, spec, request.agent, self._limits(request), now)
        session.owner, session.owner_principal = owner, principal
        session.scope = scope_of(name, request.project, request.agent)
        if cwd is not None and not config.sandbox.can_hot_mount:
            session.spec = spec._replace(workspace=cwd)
        session.cwd_needed = not isinstance(request, OpensSession) or request.cwd_needed
        if isinstance(request, OpensSession):
            asked = request.checkpoint_files
            session.checkpoint_files = config.checkpoint_files if asked is None else asked
        session.cwd, session.env, session.ephemeral = cwd, env or [], ephemeral
        state.sessions.add(session)
        state.quotas.charge(SESSIONS, session.holder)
        if name is not None:
            session.lost_cause = state.sessions.unexpected_end_cause(NameKey(owner, name, session.scope))
        state.records.add(session)
        state.emitter.emit_session_created(session)
        return session

    def sandbox_overrides_for(self, spec: WorkerSpec, request: Request) -> bytes | None:
        """Return the overrides of a new session: a copy has those of its original, and the agent's rule besides."""
        sandbox, rule = self._state.config.sandbox, self._state.config.rule_for(request)
        own = None if rule is None or sandbox.policy is None else rule.sandbox_overrides()
        if isinstance(request, OpensSession):
            return sandbox.encode_overrides(request.sandbox_overrides(), own)
        if own is None:
            return spec.sandbox_overrides
        return sandbox.encode_overrides(sandbox.decode_overrides(spec.sandbox_overrides), own)

    @staticmethod
    def _check_place(cwd: str | None, env: list[str] | None) -> None:
        if cwd is not None:
            check_path("cwd", cwd)
            if not cwd.startswith("/"):
                raise RequestError("invalid-request", "cwd: must be an absolute path")
        if any("=" not in pair[1:] or "\0" in pair for pair in env or ()):
            raise RequestError("invalid-request", "env: each entry is NAME=VALUE")

    def worker_spec(self, runtime: str | None, peer: Peer) -> WorkerSpec:
        """Return the spec for a request's `runtime`. Raises RequestError."""
        known = self._state.config.runtimes
        if runtime is None:
            return WorkerSpec(known[0])
        if runtime.startswith(("/", "@")):
            return environment_spec(self._state, runtime, peer)
        if runtime not in known:
            raise RequestError("runtime-not-allowed", f"no runtime {runtime[:80]} here: {', '.join(known)}")
        return WorkerSpec(runtime)

    def find_mismatches(self, session: Session, request: OpensSession) -> list[str]:
        """Return notices about settings of a request that an existing session was not opened with."""
        notices = [] if request.runtime is None else self._runtime_mismatch(session, request.runtime)
        fields = [] if not request.env or {*request.env} <= {*session.env} else ["`env`"]
        if request.checkpoint_files not in (None, session.checkpoint_files):
            fields.append("`checkpoint-files`")
        if (asked := request.sandbox_overrides()) is not None:
            for field in msgspec.structs.fields(asked):
                value = getattr(asked, field.name)
                one = SandboxOverrides(**{field.name: value})
                if value is not None and not self._state.config.sandbox.covers(one, session.spec.sandbox_overrides):
                    fields.append(f"`{field.name.replace('_', '-')}`")
        if fields:
            names = ", ".join(fields)
            notices.append(f"session {session.label} was opened otherwise: {names} count when a session is opened")
        return notices

    @staticmethod
    def _runtime_mismatch(session: Session, runtime: str) -> list[str]:
        has = session.spec
        if (runtime.rstrip("/") or "/") in (has.runtime, has.environment):
            return []
        if runtime.startswith("@") and has.environment == f"@{session.owner}/{runtime[1:]}":
            return []
        return [f"session {session.label} runs {has}; `runtime` counts when a session is opened"]

    def _check_rule(self, spec: WorkerSpec, request: Request, owner: str) -> None:
        rule = self._state.config.rule_for(request)
        if rule is None:
            return
        label = request.agent or "an agent without a name"
        if rule.allowed_runtimes and spec.runtime not in rule.allowed_runtimes:
            allowed = ", ".join(rule.allowed_runtimes)
            raise RequestError("runtime-not-allowed", f"{label} may open {allowed} sessions, not {spec.runtime}")
        held = sum((each.agent, each.owner) == (request.agent, owner) for each in self._state.sessions)
        if held >= rule.max_sessions:
            err = f"{label} has reached its session limit (max-sessions = {rule.max_sessions}): close one"
            fields = {"limit": "max-sessions", "limit_value": rule.max_sessions, "hint": _CLOSE_HINT}
            raise RequestError("session-limit-reached", err, **fields)

    def _limits(self, request: Request) -> Limits:
        limits, rule = self._state.limits, self._state.config.rule_for(request)
        if rule is None or rule.max_output_bytes >= limits.max_output_bytes:
            return limits
        return msgspec.structs.replace(limits, max_output_bytes=rule.max_output_bytes)
