"""Connections that are open, on every transport, and whose they are. A transport tells of each as it opens and closes;
the peers' names are the broker's own, and no two connections ever have the same."""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import CONNECTIONS, Holder, Quotas
from replwire.deadlines import Deadline
from replwire.faults import RequestError


class Connections:
    """Open connections and their accounts. One that was open when there was no room is refused until there is."""

    def __init__(self, quotas: Quotas, forget: Callable[[Deadline | None], None]) -> None:
        """`forget` cancels a deadline."""
        self._quotas = quotas
        self._cancel = forget
        self._identities: dict[Peer, str] = {}
        self._without_room: set[Peer] = set()  # those that have no room
        self._anonymous: dict[Peer, None] = {}  # those that nobody vouches for and that have room, the oldest first
        self._rejected: dict[Peer, RequestError] = {}
        self.silent: dict[Peer, Deadline] = {}  # those that have asked for nothing, and until when they may
        self.excess: dict[Peer, Deadline] = {}  # those that were refused for want of room, and until when they may stay

    def __len__(self) -> int:
        return len(self._identities)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._identities

    def open(self, peer: Peer, identity: str) -> None:
        """Add a connection. It has no room before `check` has found some."""
        self._identities[peer] = identity
        self._without_room.add(peer)

    def check(self, peer: Peer, *, asked: bool = True) -> None:
        """Raise Refusal while there is no room for a peer. `asked`: it says something, for the first time perhaps."""
        if peer in self._without_room:
            holder = Holder(self._identities[peer])
            self._quotas.check(CONNECTIONS, holder)
            self._quotas.charge(CONNECTIONS, holder)
            self._without_room.discard(peer)
            if holder.identity == ANONYMOUS:
                self._anonymous[peer] = None
        if asked and self.silent and peer not in self._anonymous:  # a ping is no sign of who it is
            self._cancel(self.silent.pop(peer, None))

    def evict_anonymous(self) -> Peer | None:
        """Take its room from the oldest one that nobody vouches for. A client needs little time to say who it is, and
        strangers who say nothing are not to keep it out."""
        oldest = next(iter(self._anonymous), None)
        if oldest is not None:
            self._release(oldest, ANONYMOUS)
            self._without_room.add(oldest)
        return oldest

    def has_room(self, peer: Peer) -> bool:
        """Return whether a connection is one of those that fit, or has become one."""
        try:
            self.check(peer, asked=False)
        except RequestError:
            return False
        return True

    def identify(self, peer: Peer, identity: str) -> None:
        """Count a connection on another account: it has shown a key or a token, or lost it."""
        before = self._identities.get(peer)
        if before is not None and before != identity:
            self._release(peer, before)
            self.open(peer, identity)

    def _release(self, peer: Peer, identity: str) -> None:
        if peer in self._without_room:
            self._without_room.discard(peer)
        else:
            self._quotas.release(CONNECTIONS, Holder(identity))
            self._anonymous.pop(peer, None)

    def reject(self, peer: Peer, refusal: RequestError) -> None:
        """Refuse all that a connection asks."""
        self._rejected[peer] = refusal

    def rejection_of(self, peer: Peer) -> RequestError | None:
        """Return the refusal of one that was turned away."""
        return self._rejected.get(peer) if self._rejected else None

    def close(self, peer: Peer) -> None:
        """Remove a connection that has ended."""
        identity = self._identities.pop(peer, None)
        if identity is not None:
            self._release(peer, identity)
        self._rejected.pop(peer, None)
        for deadlines in (self.silent, self.excess):
            self._cancel(deadlines.pop(peer, None))
