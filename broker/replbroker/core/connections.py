"""Connections that are open, on every transport, and whose they are. A transport tells of each as it opens and closes;
the peers' names are the broker's own, and no two connections ever have the same."""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer
from replbroker.core.quotas import CONNECTIONS, Holder, Quotas
from replwire.deadlines import Deadline
from replwire.faults import Refusal


class Connections:
    """Open connections and their accounts. One that was open when there was no room is refused until there is."""

    def __init__(self, quotas: Quotas, forget: Callable[[Deadline], None]) -> None:
        """`forget` cancels a deadline."""
        self._quotas = quotas
        self._forget = forget
        self._identities: dict[Peer, str] = {}
        self._waiting: set[Peer] = set()  # those that have no room
        self._turned_away: dict[Peer, Refusal] = {}
        self.silent: dict[Peer, Deadline] = {}  # those that have asked for nothing, and until when they may

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
        if asked and self.silent and (deadline := self.silent.pop(peer, None)) is not None:
            self._forget(deadline)

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
        if (deadline := self.silent.pop(peer, None)) is not None:
            self._forget(deadline)
