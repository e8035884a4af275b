"""What the broker does for each operation: the table, what is checked for all of them, and the broker's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core import views
from replbroker.core.access import ANYBODY
from replbroker.core.ask_ops import AskOps
from replbroker.core.effects import Exit, Peer, RereadConfig
from replbroker.core.environment_ops import EnvironmentOps
from replbroker.core.eval_ops import EvalOps
from replbroker.core.evals import Evals
from replbroker.core.opening import Opening
from replbroker.core.session import Session
from replbroker.core.session_ops import SessionOps
from replbroker.core.state import State
from replbroker.core.watch_ops import WatchOps, end_subscriptions
from replwire import ops as wire
from replwire.events import BrokerShutdown
from replwire.faults import Refusal
from replwire.requests import describe_ops

_FOR_ANYBODY = (wire.Hello, wire.Ping)


class Ops:
    """The operations over one state. Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, evals: Evals) -> None:
        self._state = state
        self._evals = evals
        self._described = describe_ops()  # takes milliseconds, and never changes
        self._why = ""  # the broker is told to end
        opening = Opening(state)
        asking = AskOps(state, evals, opening)
        running = EvalOps(state, evals, opening, asking)
        sessions = SessionOps(state, evals, opening, running)
        watching = WatchOps(state, evals.staff)
        self.environments = EnvironmentOps(state, evals.staff)
        self.dumped = sessions.dumped
        self.table: dict[type[wire.Request], Callable[[Any, Peer, bytes, float], None]] = {
            wire.Eval: running.eval,
            wire.LoadFile: running.run,
            wire.ReloadFile: running.run,
            wire.Read: running.read,
            wire.Interrupt: running.interrupt,
            wire.Jobs: running.jobs,
            wire.History: running.history,
            wire.Stdin: asking.ask,
            wire.Stack: asking.ask,
            wire.LsBindings: asking.ask,
            wire.Complete: asking.ask_anywhere,
            wire.Lookup: asking.ask_anywhere,
            wire.ClearBindings: asking.clear_bindings,
            wire.Info: asking.info,
            wire.NewSession: sessions.new_session,
            wire.LsSessions: sessions.ls_sessions,
            wire.SetMode: sessions.set_mode,
            wire.Share: sessions.share,
            wire.HandOver: sessions.hand_over,
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

    def perform(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """Do what is asked. Raises Refusal."""
        kind = type(request)
        if self._state.access.of(peer) == ANYBODY and kind not in _FOR_ANYBODY:
            hint = "line clients say `hello` with a token, ZeroMQ clients come with a key (replctl keys)"
            raise Refusal("unauthorized", "nobody vouches for this client", hint=hint)
        rule = self._state.rule(request)
        if rule is not None and not rule.enabled:
            raise Refusal("forbidden", f"agent {rule.name} is not enabled here")
        alters = request.alters
        if alters and (request.mode == "plan" or (rule is not None and rule.mode == "plan")):
            raise self._in_plan_mode(f"{request.op} changes something, and this client is in plan mode")
        target = request.target
        if target is not None and target != request.session:
            self._state.trail.about(peer, request.id, target)
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
            raise self._in_plan_mode(
                f"{request.op} changes something, and session {session.label} is in plan mode",
                entered_at=self._state.iso(session.mode_since),
                entered_reason=session.mode_reason,
            )

    @staticmethod
    def _in_plan_mode(err: str, **more: Any) -> Refusal:
        return Refusal(
            "plan-mode", err, hint="look and ask; `set-mode` to `normal` lets a session change again", **more
        )

    # --- the broker ---

    def hello(self, request: wire.Hello, peer: Peer, _: bytes, __: float) -> None:
        name = self._state.setup.name_of_token(request.token)
        if name is None:
            raise Refusal("unauthorized", "no such token")
        # What it has asked for until now would outlive the key or token that it asked with.
        if not self._state.access.may_become(peer, name):
            raise Refusal("invalid-request", "this connection has shown another key or token: open one more")
        self._state.access.meet(peer, name)
        self._state.connections.identify(peer, name)
        self._state.connections.check(peer)
        self._state.say(peer, request.id, status=["done"], identity=name)

    def describe(self, request: wire.Describe, peer: Peer, _: bytes, __: float) -> None:
        setup = self._state.setup
        self._state.say(
            peer,
            request.id,
            status=["done"],
            ops=self._described,
            identity=self._state.access.of(peer),
            acts_as=self._state.acts_as(self._state.access.of(peer)),
            runtimes=list(setup.runtimes),
            limits=msgspec.to_builtins(self._state.limits),
            versions=dict(setup.versions),
            sandbox=setup.sandbox.show(),
            encodings_available=["json"],
            encoding_current="json",
        )

    def ping(self, request: wire.Ping, peer: Peer, _: bytes, __: float) -> None:
        self._state.say(peer, request.id, status=["done", "pong"])

    def stats(self, request: wire.Stats, peer: Peer, _: bytes, now: float) -> None:
        access = self._state.access
        stats = views.stats(self._state, self._evals.staff, now, None if access.is_admin(peer) else access.of(peer))
        self._state.say(peer, request.id, status=["done"], stats=stats)

    def reload_config(self, request: wire.ReloadConfig, peer: Peer, _: bytes, __: float) -> None:
        if not self._state.access.is_admin(peer):
            raise Refusal("forbidden", "only the broker's own user, root and admins may reload its config")
        self._state.out.append(RereadConfig(peer, request.id))

    def shutdown(self, request: wire.Shutdown, peer: Peer, _: bytes, now: float) -> None:
        if not self._state.access.is_admin(peer):
            raise Refusal("forbidden", "only the broker's own user, root and admins may end it")
        self._state.say(peer, request.id, status=["done", "shutdown-started"])
        self.drain(f"shutdown asked by {request.agent or 'a client'}", now)

    def drain(self, why: str, now: float) -> None:
        """Take nothing new; end when the last eval has, or when the close grace is over."""
        state = self._state
        if state.draining:
            return
        state.draining, self._why = True, why
        state.note(why)
        refusal = Refusal("shutdown", "server is shutting down")
        for session in state.sessions:
            for job in session.waiting_jobs():
                self._evals.end_waiting(job, ["done", "error", "shutdown"], refusal.err, now, state="lost")
        grace = state.limits.close_grace_ms / 1000
        state.drain_deadline = state.deadlines.at(now + grace, lambda at: self.finish_drain(why, at))

    def finish_drain(self, why: str, now: float) -> None:
        """Answer whoever still waits, and go."""
        state = self._state
        state.deadlines.cancel(state.drain_deadline)
        state.drain_deadline = None
        for session in state.sessions:
            self._evals.close(session, why, now)
        self.environments.finish()
        state.bus.tell(BrokerShutdown, reason=self._why)
        end_subscriptions(state, state.bus.every(), ["done", "error", "shutdown"], "server is shutting down")
        state.out.append(Exit(why))
