"""Further hosts of a session with a list: allowed for a time by a setting or a person, and taken back."""

from __future__ import annotations

from collections.abc import Iterable

from replbroker.core.effects import Peer, ToWorker
from replbroker.core.scheduling.hook_gate import HookGate
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import events
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.link import FrameKind, encode, pack
from replwire.network import MAX_HOSTS, WEB_PORTS, check_lists, denied_entry, parse_patterns


def send_network_rules(state: BrokerState, session: Session) -> None:
    """Send a session's rules to its worker, and to the one that is to replace it."""
    for each in (session, session.replacement):
        if each is not None and each.worker is not None and (rules := state.config.network_rules(each)) is not None:
            state.effects.append(ToWorker(each.worker, pack(FrameKind.NETWORK, encode(rules), epoch=each.epoch)))


class HostOps:
    """Allows a session more hosts, and takes them back in time."""

    def __init__(self, state: BrokerState, hooks: HookGate) -> None:
        self._state = state
        self._hooks = hooks

    def allow_hosts(self, request: wire.AllowHosts, peer: Peer, _: bytes, now: float) -> None:
        """Allow a session more hosts for a time; without hosts, end what was allowed.

        Raises:
            RequestError: An entry is invalid or denied, the session has no list, or nobody has approved.
        """
        session = self._state.lookup.get(request, peer)
        if request.hosts:
            self._add(session, request, peer, now)
        else:
            self._remove(session, [*session.more_hosts], "request")
        iso = self._state.clock.to_iso
        ports = {port for pattern in parse_patterns(request.hosts) for port in pattern.ports}
        notice = "ports other than 80 and 443 may need a reset of the session" if ports - WEB_PORTS else None
        self._state.reply(
            peer,
            request.id,
            status=["done"],
            session=session.id,
            name=session.name,
            more_hosts={entry: iso(until) for entry, until in session.more_hosts.items()},
            notice=notice,
        )

    def _add(self, session: Session, request: wire.AllowHosts, peer: Peer, now: float) -> None:
        for_ms = self._check(session, request)
        approved = self._check_rule(session, request, peer, now)
        session.more_hosts |= dict.fromkeys(request.hosts, now + for_ms / 1000)
        send_network_rules(self._state, session)
        self._schedule(session)
        self._state.bus.emit(events.NetworkHostsAdded, session, hosts=request.hosts, for_ms=for_ms, approved=approved)
        by = "a person has approved" if approved else "the setting allows"
        self._audit(session, "hosts-added", f"{' '.join(request.hosts)} for {for_ms / 1000:g} s: {by}")

    def _check(self, session: Session, request: wire.AllowHosts) -> int:
        """Return for how many milliseconds. Raise RequestError for hosts that cannot be added."""
        state = self._state
        rules = state.config.network_rules(session)
        if rules is None:
            err = "the session has no list of hosts that could be added to (sandbox.network)"
            raise RequestError("not-supported", err)
        try:
            check_lists(request.hosts, [], [], [])
        except ValueError as error:
            raise RequestError("invalid-request", str(error).replace("allowed-hosts", "hosts", 1)) from None
        if (entry := denied_entry(rules.denied_hosts, request.hosts)) is not None:
            raise RequestError("forbidden", f"{entry} stays refused: sandbox.denied-hosts names it")
        if len({*rules.allowed_hosts, *request.hosts}) > MAX_HOSTS:
            raise RequestError("invalid-request", f"a session has at most {MAX_HOSTS} entries of hosts")
        most = state.limits.max_host_time_ms
        if request.for_ms is not None and request.for_ms > most:
            raise state.limit_error("invalid-request", "max-host-time-ms", f"for-ms is {request.for_ms}")
        return request.for_ms or most

    def _check_rule(self, session: Session, request: wire.AllowHosts, peer: Peer, now: float) -> bool:
        """Return whether a person has approved. Raise RequestError if that is needed, or the rule is `deny`."""
        verdict, setting = self._state.config.more_hosts_for(request.agent, request.binding)
        if verdict == "deny":
            raise RequestError("forbidden", f"no hosts may be added here ({setting} = deny)")
        if verdict == "ask":
            identity = self._state.access.identity_of(peer)
            self._hooks.require_approval(session, request, identity, setting, now)
        return verdict == "ask"

    def _remove(self, session: Session, entries: Iterable[str], by: str) -> None:
        if not (ended := [entry for entry in entries if session.more_hosts.pop(entry, None) is not None]):
            return
        send_network_rules(self._state, session)
        self._schedule(session)
        self._state.bus.emit(events.NetworkHostsRemoved, session, hosts=ended, by=by)
        self._audit(session, "hosts-removed", f"{' '.join(ended)}: by {by}")

    def _schedule(self, session: Session) -> None:
        """Wake up when the next entry ends."""
        self._state.deadlines.cancel(session.host_deadline)
        session.host_deadline = None
        if session.more_hosts:
            when = min(session.more_hosts.values())
            session.host_deadline = self._state.deadlines.call_at(when, lambda now: self._expire(session, now))

    def _expire(self, session: Session, now: float) -> None:
        self._remove(session, [entry for entry, until in session.more_hosts.items() if until <= now], "time")

    def _audit(self, session: Session, outcome: str, text: str) -> None:
        self._state.audit.record_own("network", session.agent, session.name or session.id, outcome, text)
