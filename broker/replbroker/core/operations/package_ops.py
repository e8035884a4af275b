"""Package actions of `env`: what is refused at once, and the place of the others in their session's queue."""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer, StartEgress
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.packages import InvalidPackage, parse_node_package, parse_python_package

INSTALL_ACTIONS = frozenset({"add", "rm", "update", "instantiate", "resolve"})  # those that start an installer
_NAMED = ("add", "rm")
_PARSERS: dict[str, Callable[[str], object]] = {"python": parse_python_package, "node": parse_node_package}


class PackageOps:
    """Checks package actions and submits them like evals."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, evals: EvalOps) -> None:
        self._state = state
        self._scheduler = scheduler
        self._evals = evals

    def submit(self, session: Session, request: wire.Env, peer: Peer, body: bytes, now: float) -> None:
        """Refuse a package action, or queue it in its session.

        Raises:
            RequestError: The runtime has no packages, a name is none, or a rule does not permit it.
        """
        runtime = session.spec.runtime
        parse = _PARSERS.get(runtime)
        if parse is None or (runtime, request.action) == ("node", "test"):
            raise RequestError("not-supported", f"env {request.action} is not for {runtime} sessions")
        if request.action in _NAMED and not request.packages:
            raise RequestError("invalid-request", f"env {request.action} requires packages")
        if request.action in INSTALL_ACTIONS:
            for text in request.packages:
                try:
                    parse(text)
                except InvalidPackage as error:
                    raise RequestError("invalid-request", f"packages: {error}") from None
            self._check_rule(session, request, peer, now)
            session.has_packages = True
            self._state.changes.touch_session(session)
            self._state.effects.append(StartEgress())
        self._evals.submit_request(request, peer, body, now)

    def _check_rule(self, session: Session, request: wire.Env, peer: Peer, now: float) -> None:
        """Raise RequestError if the rule for the agent is `deny`, or `ask` and no person has approved."""
        rule = self._state.config.rule_for(request)
        given = None if rule is None else rule.packages
        verdict = given or self._state.config.install_packages
        setting = "packages.install" if given is None else f"packages of agent {rule.name if rule else ''}"
        if verdict == "deny":
            raise RequestError("forbidden", f"packages may not be installed here ({setting} = deny)")
        if verdict == "ask":
            identity = self._state.access.identity_of(peer)
            self._scheduler.hooks.require_approval(session, request, identity, setting, now)
