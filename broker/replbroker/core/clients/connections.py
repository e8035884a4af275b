"""Open connections on every transport, and the accounts they are charged to.

A transport reports each connection as it opens and closes. Names of peers are the broker's own, and no two connections
ever have the same.
"""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import CONNECTIONS, Holder, Quotas
from replwire.deadlines import Deadline
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS


class Connections:
    """Open connections. One that was opened when there was no room is refused until there is.

    Attributes:
        silent: Connections that have asked for nothing yet, and until when they may stay.
        excess: Connections that were refused for want of room, and until when they may stay.
        unsettled: Connections without room.
        rejected: Connections of which every request is refused, and the error.
    """

    def __init__(self, quotas: Quotas, cancel: Callable[[Deadline | None], None]) -> None:
        """Create an empty set; `cancel` cancels a deadline."""
        self._quotas = quotas
        self._cancel = cancel
        self._identities: dict[Peer, str] = {}
        self._anonymous: dict[Peer, None] = {}  # those that have room, the oldest first
        self.unsettled: set[Peer] = set()
        self.rejected: dict[Peer, RequestError] = {}
        self.silent: dict[Peer, Deadline] = {}
        self.excess: dict[Peer, Deadline] = {}

    def __len__(self) -> int:
        return len(self._identities)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._identities

    def open(self, peer: Peer, identity: str) -> None:
        """Add a connection. It has no room before `check` has found some."""
        self._identities[peer] = identity
        self.unsettled.add(peer)

    def check(self, peer: Peer, *, asked: bool = True) -> None:
        """Raise RequestError while there is no room for a peer.

        Args:
            peer: The connection.
            asked: It has sent a request, perhaps its first.
        """
        if peer in self.unsettled:
            holder = Holder(self._identities[peer])
            self._quotas.check(CONNECTIONS, holder)
            self._quotas.charge(CONNECTIONS, holder)
            self.unsettled.discard(peer)
            if holder.identity == ANONYMOUS:
                self._anonymous[peer] = None
        if asked and self.silent and peer not in self._anonymous:  # a ping does not identify anybody
            self._cancel(self.silent.pop(peer, None))

    def evict_anonymous(self) -> Peer | None:
        """Take the room of the oldest anonymous connection, so that strangers who say nothing do not keep others out.

        Returns:
            The connection, to be closed.
        """
        oldest = next(iter(self._anonymous), None)
        if oldest is not None:
            self._release(oldest, ANONYMOUS)
            self.unsettled.add(oldest)
        return oldest

    def has_room(self, peer: Peer) -> bool:
        """Return whether there is, or is now, room for a connection."""
        try:
            self.check(peer, asked=False)
        except RequestError:
            return False
        return True

    def identify(self, peer: Peer, identity: str) -> None:
        """Charge a connection to another account: it has shown a key or a token, or lost it."""
        before = self._identities.get(peer)
        if before is not None and before != identity:
            self._release(peer, before)
            self.open(peer, identity)

    def _release(self, peer: Peer, identity: str) -> None:
        if peer in self.unsettled:
            self.unsettled.discard(peer)
        else:
            self._quotas.release(CONNECTIONS, Holder(identity))
            self._anonymous.pop(peer, None)

    def reject(self, peer: Peer, error: RequestError) -> None:
        """Refuse every request of a connection with this error."""
        self.rejected[peer] = error

    def close(self, peer: Peer) -> None:
        """Remove a connection that has ended."""
        identity = self._identities.pop(peer, None)
        if identity is not None:
            self._release(peer, identity)
        self.rejected.pop(peer, None)
        for deadlines in (self.silent, self.excess):
            self._cancel(deadlines.pop(peer, None))
