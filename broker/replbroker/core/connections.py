"""Connections that are open, on every transport: how many, and whose. A transport tells of each as it opens and closes;
the peers' names are the broker's own, and no two connections ever have the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from replbroker.core.effects import Peer
from replwire.faults import Refusal


class Connections:
    """Who is connected. One that was open when there was no room is refused until there is."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._identities: dict[Peer, str] = {}
        self._waiting: set[Peer] = set()  # beyond the bound
        self._turned_away: dict[Peer, Refusal] = {}
        self.by_identity: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._identities)

    def open(self, peer: Peer, identity: str) -> bool:
        """A connection was made; whether there is room for it."""
        self._identities[peer] = identity
        self.by_identity[identity] += 1
        self._waiting.add(peer)
        return self.has_room(peer)

    def has_room(self, peer: Peer) -> bool:
        """Whether it is one of those that fit, or has become one."""
        if peer in self._waiting and len(self._identities) - len(self._waiting) < self._most():
            self._waiting.discard(peer)
        return peer not in self._waiting

    def identify(self, peer: Peer, identity: str) -> None:
        """It has shown a key or a token."""
        before = self._identities.get(peer)
        if before is not None:
            self._forget(before)
            self._identities[peer] = identity
            self.by_identity[identity] += 1

    def turn_away(self, peer: Peer, refusal: Refusal) -> None:
        """Whatever it asks is refused so."""
        self._turned_away[peer] = refusal

    def refusal(self, peer: Peer) -> Refusal | None:
        """Why nothing is done for this one."""
        return self._turned_away.get(peer) if self._turned_away else None

    def close(self, peer: Peer) -> None:
        """It has ended."""
        identity = self._identities.pop(peer, None)
        if identity is not None:
            self._forget(identity)
        self._waiting.discard(peer)
        self._turned_away.pop(peer, None)

    def _forget(self, identity: str) -> None:
        self.by_identity[identity] -= 1
        if not self.by_identity[identity]:
            del self.by_identity[identity]
