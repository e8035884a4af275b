"""Connections as they are made: those that have no room, or never ask for anything, are hung up on in time."""

from __future__ import annotations

from replbroker.core.access import ANYBODY
from replbroker.core.effects import HangUp, Peer
from replbroker.core.state import State, refused
from replwire.faults import Refusal
from replwire.replies import Reply, encode

_EXCESS_S = 1.0  # how long a connection that is refused for want of room may stay


class Arrivals:
    """Over one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def connected(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...]) -> bytes | None:
        """A connection was made; the refusal of one that has no room."""
        state = self._state
        state.access.meet(peer, identity, groups)
        state.connections.open(peer, state.access.of(peer))
        if state.limits.first_request_ms:
            when = now + state.limits.first_request_ms / 1000
            state.connections.silent[peer] = state.deadlines.at(when, lambda _: self._hang_up_silent(peer))
        try:
            self._make_room(peer)
        except Refusal as refusal:
            state.counts[f"refused.{refusal.word}"] += 1
            state.news.refused(refusal, None, now)
            return encode(Reply(id="", **refused(refusal)))
        return None

    def _make_room(self, peer: Peer) -> None:
        """Raises Refusal. Where only those have no room whom nobody vouches for, the oldest of them goes."""
        connections = self._state.connections
        try:
            connections.check(peer, asked=False)
        except Refusal as refusal:
            oldest = connections.give_up_unknown() if refusal.more["quota_of"] == ANYBODY else None
            if oldest is None:
                raise
            self._state.out.append(HangUp(oldest, at_once=True))
            connections.check(peer, asked=False)

    def _hang_up_silent(self, peer: Peer) -> None:
        """It has asked for nothing that could be looked at, and takes the place of somebody who would."""
        self._state.counts["connections.silent"] += 1
        self._state.out.append(HangUp(peer, at_once=True))

    def end_without_room(self, peer: Peer, now: float) -> None:
        """One that is refused for want of room is counted nowhere, so it may not stay: it has a moment to hear why."""
        state, excess = self._state, self._state.connections.excess

        def end(_: float) -> None:
            del excess[peer]
            if not state.connections.has_room(peer):
                state.out.append(HangUp(peer, at_once=True))

        if peer not in excess:
            excess[peer] = state.deadlines.at(now + _EXCESS_S, end)
