"""Admission of connections: those without room, or that never ask for anything, are closed in time."""

from __future__ import annotations

from replbroker.core.effects import CloseConnection, Peer
from replbroker.core.state import BrokerState, error_fields
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS
from replwire.replies import Reply, encode

_EXCESS_GRACE_S = 1.0  # for a connection that is refused for want of room


class ConnectionAdmission:
    """Admits connections, and closes those that take up room for nothing."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def admit(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...]) -> bytes | None:
        """Add a new connection. Return the error for one without room."""
        state = self._state
        state.access.register(peer, identity, groups)
        state.connections.open(peer, state.access.identity_of(peer))
        if state.limits.first_request_ms:
            when = now + state.limits.first_request_ms / 1000
            state.connections.silent[peer] = state.deadlines.call_at(when, lambda _: self._close_silent(peer))
        try:
            self._make_room(peer)
        except RequestError as error:
            state.counts[f"refused.{error.code}"] += 1
            state.emitter.emit_rejection(error, None, now)
            return encode(Reply(id="", **error_fields(error)))
        return None

    def _make_room(self, peer: Peer) -> None:
        """Find room for a connection, where necessary that of the oldest anonymous one. Raises RequestError."""
        connections = self._state.connections
        try:
            connections.check(peer, asked=False)
        except RequestError as error:
            oldest = connections.evict_anonymous() if error.fields["quota_of"] == ANONYMOUS else None
            if oldest is None:
                raise
            self._state.effects.append(CloseConnection(oldest, at_once=True))
            connections.check(peer, asked=False)

    def _close_silent(self, peer: Peer) -> None:
        """Close a connection that has sent no request and takes the place of one that would."""
        self._state.counts["connections.silent"] += 1
        self._state.effects.append(CloseConnection(peer, at_once=True))

    def close_excess(self, peer: Peer, now: float) -> None:
        """Close a connection that is refused for want of room, after a moment in which it can read why."""
        state, excess = self._state, self._state.connections.excess

        def end(_: float) -> None:
            del excess[peer]
            if not state.connections.has_room(peer):
                state.effects.append(CloseConnection(peer, at_once=True))

        if peer not in excess:
            excess[peer] = state.deadlines.call_at(now + _EXCESS_GRACE_S, end)
