"""The operations of the broker: their table, the checks that all of them share, and those about the broker itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.effects import Peer, RereadConfig
from replbroker.core.operations import views
from replbroker.core.operations.branches import BranchOps
from replbroker.core.operations.checkpoint_ops import CheckpointOps
from replbroker.core.operations.clones import CloneOps
from replbroker.core.operations.environment_ops import EnvironmentOps
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.operations.eval_outcomes import EvalOutcomes
from replbroker.core.operations.extension_ops import ExtensionOps
from replbroker.core.operations.hibernation import Hibernation
from replbroker.core.operations.host_ops import HostOps
from replbroker.core.operations.package_ops import PackageOps
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.operations.session_ops import SessionOps
from replbroker.core.operations.shutdown import ShutdownSequence
from replbroker.core.operations.snapshot_ops import SnapshotOps
from replbroker.core.operations.subscription_ops import SubscriptionOps
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS
from replwire.ops.extension import ExtensionRequest
from replwire.requests import describe_ops

_ANONYMOUS_OPS = (wire.Hello, wire.Ping)


class OperationDispatcher:
    """Calls the function of each operation, with the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler) -> None:
        self._state = state
        self._scheduler = scheduler
        self._descriptions = describe_ops()  # takes milliseconds, and never changes
        factory = SessionFactory(state)
        queries = QueryOps(state, scheduler, factory)
        self._evals = evals = EvalOps(state, scheduler, factory, queries)
        checkpoints = CheckpointOps(state, evals, queries)
        self.snapshots = snapshots = SnapshotOps(state, evals, queries)
        sessions = SessionOps(state, scheduler, factory, PackageOps(state, scheduler, evals))
        watching = SubscriptionOps(state, scheduler.pool)
        self.branches = BranchOps(state, scheduler, factory)
        self.hibernation = Hibernation(state, scheduler)
        self.clones = CloneOps(state, scheduler, factory)
        self.environments = EnvironmentOps(state, scheduler.pool)
        self.extensions = ExtensionOps(state)
        self.shutdown = ShutdownSequence(state, scheduler, self.environments, self.extensions)
        self.table: dict[type[wire.Request], Callable[[Any, Peer, bytes, float], None]] = {
            wire.Eval: evals.eval,
            wire.LoadFile: evals.submit_request,
            wire.ReloadFile: evals.submit_request,
            wire.PutFile: queries.forward,
            wire.GetFile: queries.get_file,
            wire.Read: evals.read,
            wire.Interrupt: evals.interrupt,
            wire.Jobs: evals.jobs,
            wire.FindEval: EvalOutcomes(state).find_eval,
            wire.History: evals.history,
            wire.Stdin: queries.forward,
            wire.Stack: queries.forward,
            wire.LsBindings: queries.forward,
            wire.Complete: queries.forward_anywhere,
            wire.Lookup: queries.forward_anywhere,
            wire.ClearBindings: queries.clear_bindings,
            wire.Info: queries.info,
            wire.NewSession: sessions.new_session,
            wire.LsSessions: sessions.ls_sessions,
            wire.SetMode: sessions.set_mode,
            wire.Share: sessions.share,
            wire.Transfer: sessions.transfer,
            wire.Env: sessions.env,
            wire.AllowHosts: HostOps(state, scheduler.hooks).allow_hosts,
            wire.LsEnvironments: self.environments.ls_environments,
            wire.RemoveEnvironment: self.environments.remove_environment,
            wire.Clone: self.clones.clone,
            wire.CloneSession: self.clones.clone,
            wire.Save: snapshots.save,
            wire.Hibernate: self.hibernation.hibernate,
            wire.GetSnapshot: snapshots.get_snapshot,
            wire.PutSnapshot: snapshots.put_snapshot,
            wire.Checkpoint: checkpoints.checkpoint,
            wire.LsCheckpoints: checkpoints.ls_checkpoints,
            wire.Rollback: checkpoints.forward,
            wire.Branch: self.branches.branch,
            wire.Diff: checkpoints.forward,
            wire.DropCheckpoint: checkpoints.forward,
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
            wire.Shutdown: self.shut_down,
            ExtensionRequest: self.extensions.run,
        }

    def dispatch(self, request: wire.Request, peer: Peer, body: bytes, now: float) -> None:
        """Check a request against rules, modes and rights, and perform its operation.

        Args:
            request: The typed request.
            peer: Its sender.
            body: The request as it came.
            now: Seconds, monotonic.

        Raises:
            RequestError: The request is not served.
        """
        state, kind = self._state, type(request)
        identity = state.access.identity_of(peer)
        if identity == ANONYMOUS and kind not in _ANONYMOUS_OPS:
            hint = "JSON-lines clients send `hello` with a token, ZeroMQ clients use a key (replctl keys)"
            raise RequestError("unauthorized", "this client is not authenticated", hint=hint)
        rule = state.config.agents.rule(request.agent, request.binding)
        if rule is not None and not rule.enabled:
            raise RequestError("forbidden", f"agent {request.agent or 'without a name'} is not enabled here")
        mutates = request.mutates
        if mutates and (request.mode == "plan" or (rule is not None and rule.mode == "plan")):
            raise self._plan_mode_error(f"{request.op} changes something, and this client is in plan mode")
        target, session = request.target, None
        if target is not None:
            if target != request.session:
                state.audit.set_session(peer, request.id, target)
            session = state.lookup.find(request, peer)
        if session is not None:
            # A clone leaves its source as it is, and the recipient of a transfer need not be allowed to change it.
            changes = mutates and not isinstance(request, wire.Clone | wire.Transfer)
            if changes and (session.owner != identity or session.mode == "plan"):
                self._check_session(session, request, peer)
        if isinstance(request, wire.Eval):  # the hot path: its session is not looked up again
            self._evals.eval_in(session, request, peer, body, now)
        else:
            self.table[kind](request, peer, body, now)

    def _check_session(self, session: Session, request: wire.Request, peer: Peer) -> None:
        """Check the rights on a session first: the reason for its mode is not for everybody."""
        self._state.access.check(session, peer, changes=True)
        if session.mode == "plan":
            raise self._plan_mode_error(
                f"{request.op} changes something, and session {session.label} is in plan mode",
                entered_at=self._state.clock.to_iso(session.mode_since),
                entered_reason=session.mode_reason,
            )

    @staticmethod
    def _plan_mode_error(err: str, **fields: Any) -> RequestError:
        hint = "only read-only requests are allowed; `set-mode` with `normal` ends plan mode"
        return RequestError("plan-mode", err, hint=hint, **fields)

    # --- the broker ---

    def hello(self, request: wire.Hello, peer: Peer, _: bytes, __: float) -> None:
        """Identify a connection by its token."""
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
        """Reply with operations, limits, versions and the sandbox."""
        state, config = self._state, self._state.config
        identity = state.access.identity_of(peer)
        state.reply(
            peer,
            request.id,
            status=["done"],
            ops=self._descriptions | dict(config.extension_ops),
            identity=identity,
            acts_as=config.acts_as(identity),
            runtimes=list(config.runtimes),
            limits=msgspec.to_builtins(state.limits),
            versions=dict(config.versions),
            instance=config.boot_id,
            sandbox=config.sandbox.show(),
            encodings_available=["json"],
            encoding_current="json",
        )

    def ping(self, request: wire.Ping, peer: Peer, _: bytes, __: float) -> None:
        """Reply at once."""
        self._state.reply(peer, request.id, status=["done", "pong"])

    def stats(self, request: wire.Stats, peer: Peer, _: bytes, now: float) -> None:
        """Reply with counters and usage, as far as the sender may see them."""
        access = self._state.access
        identity = None if access.is_admin(peer) else access.identity_of(peer)
        stats = views.stats(self._state, self._scheduler.pool, now, identity)
        self._state.reply(peer, request.id, status=["done"], stats=stats)

    def reload_config(self, request: wire.ReloadConfig, peer: Peer, _: bytes, __: float) -> None:
        """Have the config file read again. `apply_reload` replies."""
        if not self._state.access.is_admin(peer):
            raise RequestError("forbidden", "only the broker's own user, root and admins may reload its config")
        self._state.effects.append(RereadConfig(peer, request.id))

    def shut_down(self, request: wire.Shutdown, peer: Peer, _: bytes, now: float) -> None:
        """End the broker."""
        if not self._state.access.is_admin(peer):
            raise RequestError("forbidden", "only the broker's own user, root and admins may end it")
        keep = request.keep_sessions or request.restart
        if keep and not self._state.config.sessions_outlive:
            err = "sessions end with this broker (broker.orphan-ttl-ms = 0): nothing was done"
            raise RequestError("not-supported", err, hint="a shutdown without `keep-sessions` closes them")
        self._state.reply(peer, request.id, status=["done", "shutdown-started"])
        why = f"{'restart' if request.restart else 'shutdown'} asked by {request.agent or 'a client'}"
        if keep:
            self.shutdown.leave(why, now, restart=request.restart)
        else:
            self.shutdown.begin(why, now)
