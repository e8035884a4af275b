"""Connections as they are made: those that have no room, or never ask for anything, are hung up on in time."""

from __future__ import annotations

from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import CloseConnection, Peer
from replbroker.core.state import BrokerState, error_fields
from replwire.faults import RequestError
from replwire.replies import Reply, encode

_EXCESS_GRACE_S = 1.0  # how long a connection that is refused for want of room may stay


class ConnectionAdmission:
    """Over one state."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def admit(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...]) -> bytes | None:
        """A connection was made; the refusal of one that has no room."""
        state = self._state
        state.access.register(peer, identity, groups)
        state.connections.open(peer, state.access.identity_of(peer))
        if state.limits.first_request_ms:
            when = now + state.limits.first_request_ms / 1000
            state.connections.silent[peer] = state.deadlines.call_at(when, lambda _: self._close_silent(peer))
        try:
            self._make_room(peer)
        except RequestError as refusal:
            state.counts[f"refused.{refusal.code}"] += 1
            state.emitter.emit_rejection(refusal, None, now)
            return encode(Reply(id="", **error_fields(refusal)))
        return None

    def _make_room(self, peer: Peer) -> None:
        """Raises Refusal. Where only those have no room whom nobody vouches for, the oldest of them goes."""
        connections = self._state.connections
        try:
            connections.check(peer, asked=False)
        except RequestError as refusal:
            oldest = connections.evict_anonymous() if refusal.fields["quota_of"] == ANONYMOUS else None
            if oldest is None:
                raise
            self._state.effects.append(CloseConnection(oldest, at_once=True))
            connections.check(peer, asked=False)

    def _close_silent(self, peer: Peer) -> None:
        """It has asked for nothing that could be looked at, and takes the place of somebody who would."""
        self._state.counts["connections.silent"] += 1
        self._state.effects.append(CloseConnection(peer, at_once=True))

    def close_excess(self, peer: Peer, now: float) -> None:
        """One that is refused for want of room is counted nowhere, so it may not stay: it has a moment to hear why."""
        state, excess = self._state, self._state.connections.excess

        def end(_: float) -> None:
            del excess[peer]
            if not state.connections.has_room(peer):
                state.effects.append(CloseConnection(peer, at_once=True))

        if peer not in excess:
            excess[peer] = state.deadlines.call_at(now + _EXCESS_GRACE_S, end)
