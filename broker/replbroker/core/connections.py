"""Connections that are open, on every transport, and whose they are. A transport tells of each as it opens and closes;
the peers' names are the broker's own, and no two connections ever have the same."""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.access import ANYBODY
from replbroker.core.effects import Peer
from replbroker.core.quotas import CONNECTIONS, Holder, Quotas
from replwire.deadlines import Deadline
from replwire.faults import Refusal


class Connections:
    """Open connections and their accounts. One that was open when there was no room is refused until there is."""

    def __init__(self, quotas: Quotas, forget: Callable[[Deadline | None], None]) -> None:
        """`forget` cancels a deadline."""
        self._quotas = quotas
        self._forget = forget
        self._identities: dict[Peer, str] = {}
        self._waiting: set[Peer] = set()  # those that have no room
        self._unknown: dict[Peer, None] = {}  # those that nobody vouches for and that have room, the oldest first
        self._turned_away: dict[Peer, Refusal] = {}
        self.silent: dict[Peer, Deadline] = {}  # those that have asked for nothing, and until when they may
        self.excess: dict[Peer, Deadline] = {}  # those that were refused for want of room, and until when they may stay

    def __len__(self) -> int:
        return len(self._identities)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._identities

    def open(self, peer: Peer, identity: str) -> None:
        """Add a connection. It has no room before `check` has found some."""
        self._identities[peer] = identity
        self._waiting.add(peer)

    def check(self, peer: Peer, *, asked: bool = True) -> None:
        """Raise Refusal while there is no room for a peer. `asked`: it says something, for the first time perhaps."""
        if peer in self._waiting:
            holder = Holder(self._identities[peer])
            self._quotas.check(CONNECTIONS, holder)
            self._quotas.charge(CONNECTIONS, holder)
            self._waiting.discard(peer)
            if holder.identity == ANYBODY:
                self._unknown[peer] = None
        if asked and self.silent and peer not in self._unknown:  # a ping is no sign of who it is
            self._forget(self.silent.pop(peer, None))

    def give_up_unknown(self) -> Peer | None:
        """Take its room from the oldest one that nobody vouches for. A client needs little time to say who it is, and
        strangers who say nothing are not to keep it out."""
        oldest = next(iter(self._unknown), None)
        if oldest is not None:
            self._release(oldest, ANYBODY)
            self._waiting.add(oldest)
        return oldest

    def has_room(self, peer: Peer) -> bool:
        """Return whether a connection is one of those that fit, or has become one."""
        try:
            self.check(peer, asked=False)
        except Refusal:
            return False
        return True

    def identify(self, peer: Peer, identity: str) -> None:
        """Count a connection on another account: it has shown a key or a token, or lost it."""
        before = self._identities.get(peer)
        if before is not None and before != identity:
            self._release(peer, before)
            self.open(peer, identity)

    def _release(self, peer: Peer, identity: str) -> None:
        if peer in self._waiting:
            self._waiting.discard(peer)
        else:
            self._quotas.release(CONNECTIONS, Holder(identity))
            self._unknown.pop(peer, None)

    def turn_away(self, peer: Peer, refusal: Refusal) -> None:
        """Refuse all that a connection asks."""
        self._turned_away[peer] = refusal

    def refusal(self, peer: Peer) -> Refusal | None:
        """Return the refusal of one that was turned away."""
        return self._turned_away.get(peer) if self._turned_away else None

    def close(self, peer: Peer) -> None:
        """Remove a connection that has ended."""
        identity = self._identities.pop(peer, None)
        if identity is not None:
            self._release(peer, identity)
        self._turned_away.pop(peer, None)
        for deadlines in (self.silent, self.excess):
            self._forget(deadlines.pop(peer, None))
