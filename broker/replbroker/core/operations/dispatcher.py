"""What the broker does for each operation: the table, what is checked for all of them, and the broker's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import Peer, RereadConfig, StopBroker
from replbroker.core.operations import views
from replbroker.core.operations.environment_ops import EnvironmentOps
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.operations.session_ops import SessionOps
from replbroker.core.operations.subscription_ops import SubscriptionOps, end_subscriptions
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.events import BrokerShutdown
from replwire.faults import RequestError
from replwire.requests import describe_ops

_ANONYMOUS_OPS = (wire.Hello, wire.Ping)


class OperationDispatcher:
    """The operations over one state. Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalScheduler) -> None:
        self._state = state
        self._evals = evals
        self._descriptions = describe_ops()  # takes milliseconds, and never changes
        self._drain_reason = ""  # the broker is told to end
        opening = SessionFactory(state)
        asking = QueryOps(state, evals, opening)
        running = EvalOps(state, evals, opening, asking)
        sessions = SessionOps(state, evals, opening, running)
        watching = SubscriptionOps(state, evals.pool)
        self.environments = EnvironmentOps(state, evals.pool)
        self.dumped = sessions.dumped
        self.table: dict[type[wire.Request], Callable[[Any, Peer, bytes, float], None]] = {
            wire.Eval: running.eval,
            wire.LoadFile: running.submit_request,
            wire.ReloadFile: running.submit_request,
            wire.Read: running.read,
            wire.Interrupt: running.interrupt,
            wire.Jobs: running.jobs,
            wire.History: running.history,
            wire.Stdin: asking.forward,
            wire.Stack: asking.forward,
            wire.LsBindings: asking.forward,
            wire.Complete: asking.forward_anywhere,
            wire.Lookup: asking.forward_anywhere,
            wire.ClearBindings: asking.clear_bindings,
            wire.Info: asking.info,
            wire.NewSession: sessions.new_session,
            wire.LsSessions: sessions.ls_sessions,
            wire.SetMode: sessions.set_mode,
            wire.Share: sessions.share,
            wire.HandOver: sessions.transfer,
            wire.Env: sessions.env,
            wire.LsEnvironments: self.environments.ls_environments,
            wire.RemoveEnvironment: self.environments.remove_environment,
            wire.Clone: sessions.clone,
            wire.CloneSession: sessions.clone,
            wire.Reset: sessions.reset,
            wire.Close: sessions.close,
            wire.CloseSession: sessions.close,
            wire.Hello: self.hello,
            wire.Describe: self.describe,
            wire.Ping: self.ping,
            wire.Stats: self.stats,
            wire.Introspect: watching.introspect,
            wire.Subscribe: watching.subscribe,
            wire.Unsubscribe: watching.unsubscribe,
            wire.ReloadConfig: self.reload_config,
            wire.Shutdown: self.shutdown,
        }

    def dispatch(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """Do what is asked. Raises Refusal."""
        kind = type(request)
        if self._state.access.identity_of(peer) == ANONYMOUS and kind not in _ANONYMOUS_OPS:
            hint = "line clients say `hello` with a token, ZeroMQ clients come with a key (replctl keys)"
            raise RequestError("unauthorized", "nobody vouches for this client", hint=hint)
        rule = self._state.rule(request)
        if rule is not None and not rule.enabled:
            raise RequestError("forbidden", f"agent {rule.name} is not enabled here")
        alters = request.mutates
        if alters and (request.mode == "plan" or (rule is not None and rule.mode == "plan")):
            raise self._plan_mode_error(f"{request.op} changes something, and this client is in plan mode")
        target = request.target
        if target is not None and target != request.session:
            self._state.audit.set_session(peer, request.id, target)
        session = self._state.lookup.find(request, peer)
        if session is not None:
            # A clone leaves its source as it is, and who may take a session need not be one who may change it.
            changes = alters and not isinstance(request, wire.Clone | wire.HandOver)
            self._check_session(session, request, peer, changes)
        self.table[kind](request, peer, body, now)

    def _check_session(self, session: Session, request: wire.Request, peer: Peer, changes: bool) -> None:
        """Rights come first: the reason for a mode is not for everybody."""
        self._state.access.check(session, peer, changes=changes)
        if changes and session.mode == "plan":
            raise self._plan_mode_error(
                f"{request.op} changes something, and session {session.label} is in plan mode",
                entered_at=self._state.to_iso(session.mode_since),
                entered_reason=session.mode_reason,
            )

    @staticmethod
    def _plan_mode_error(err: str, **more: Any) -> RequestError:
        return RequestError(
            "plan-mode", err, hint="look and ask; `set-mode` to `normal` lets a session change again", **more
        )

    # --- the broker ---

    def hello(self, request: wire.Hello, peer: Peer, _: bytes, __: float) -> None:
        name = self._state.config.name_of_token(request.token)
        if name is None:
            raise RequestError("unauthorized", "no such token")
        # What it has asked for until now would outlive the key or token that it asked with.
        if not self._state.access.may_become(peer, name):
            raise RequestError("invalid-request", "this connection has shown another key or token: open one more")
        self._state.access.register(peer, name)
        self._state.connections.identify(peer, name)
        self._state.connections.check(peer)
        self._state.reply(peer, request.id, status=["done"], identity=name)

    def describe(self, request: wire.Describe, peer: Peer, _: bytes, __: float) -> None:
        setup = self._state.config
        self._state.reply(
            peer,
            request.id,
            status=["done"],
            ops=self._descriptions,
            identity=self._state.access.identity_of(peer),
            acts_as=self._state.acts_as(self._state.access.identity_of(peer)),
            runtimes=list(setup.runtimes),
            limits=msgspec.to_builtins(self._state.limits),
            versions=dict(setup.versions),
            sandbox=setup.sandbox.show(),
            encodings_available=["json"],
            encoding_current="json",
        )

    def ping(self, request: wire.Ping, peer: Peer, _: bytes, __: float) -> None:
        self._state.reply(peer, request.id, status=["done", "pong"])

    def stats(self, request: wire.Stats, peer: Peer, _: bytes, now: float) -> None:
        access = self._state.access
        stats = views.stats(
            self._state, self._evals.pool, now, None if access.is_admin(peer) else access.identity_of(peer)
        )
        self._state.reply(peer, request.id, status=["done"], stats=stats)

    def reload_config(self, request: wire.ReloadConfig, peer: Peer, _: bytes, __: float) -> None:
        if not self._state.access.is_admin(peer):
            raise RequestError("forbidden", "only the broker's own user, root and admins may reload its config")
        self._state.effects.append(RereadConfig(peer, request.id))

    def shutdown(self, request: wire.Shutdown, peer: Peer, _: bytes, now: float) -> None:
        if not self._state.access.is_admin(peer):
            raise RequestError("forbidden", "only the broker's own user, root and admins may end it")
        self._state.reply(peer, request.id, status=["done", "shutdown-started"])
        self.drain(f"shutdown asked by {request.agent or 'a client'}", now)

    def drain(self, why: str, now: float) -> None:
        """Take nothing new; end when the last eval has, or when the close grace is over."""
        state = self._state
        if state.draining:
            return
        state.draining, self._drain_reason = True, why
        state.log(why)
        refusal = RequestError("shutdown", "server is shutting down")
        for session in state.sessions:
            for job in session.waiting_evals():
                self._evals.end_waiting(job, ["done", "error", "shutdown"], refusal.message, now, state="lost")
        grace = state.limits.close_grace_ms / 1000
        state.drain_deadline = state.deadlines.call_at(now + grace, lambda at: self.finish_drain(why, at))

    def finish_drain(self, why: str, now: float) -> None:
        """Answer whoever still waits, and go."""
        state = self._state
        state.deadlines.cancel(state.drain_deadline)
        state.drain_deadline = None
        for session in state.sessions:
            self._evals.close(session, why, now)
        self.environments.finish()
        state.bus.emit(BrokerShutdown, reason=self._drain_reason)
        end_subscriptions(state, state.bus.all(), ["done", "error", "shutdown"], "server is shutting down")
        state.effects.append(StopBroker(why))
