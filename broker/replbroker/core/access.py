"""Who a client is, and what of whom it may see and touch.

An identity is what a transport can vouch for: `uid:1000` for a process at a Unix socket, a key's or token's name
beyond. The broker's own user and root are admins. Nothing in a request says who sent it.
"""

from __future__ import annotations

from replbroker.core.effects import Peer
from replbroker.core.session import Session
from replwire.faults import Refusal

EVERYBODY = "*"
ANYBODY = "anyone"  # nobody vouches for this one


class Access:
    """Identities of peers, and rights on sessions. `own` is the broker's user."""

    def __init__(self, own: str, admins: frozenset[str]) -> None:
        self._own = own
        self._admins = admins | {own, "uid:0"}
        self._who: dict[Peer, str] = {}
        self._idle: set[Peer] = set()  # not heard since the last sweep

    def knows(self, peer: Peer) -> bool:
        """Whether the transport has said who this is."""
        self._idle.discard(peer)
        return peer in self._who

    def meet(self, peer: Peer, identity: str) -> None:
        """This is who stands behind the connection."""
        self._who[peer] = identity

    def forget(self, peer: Peer) -> None:
        """It is gone."""
        self._who.pop(peer, None)
        self._idle.discard(peer)

    def sweep(self) -> None:
        """Forget who was not heard since the last sweep: nobody tells of a client that went silently, and one that
        is still there is asked about again."""
        for peer in [*self._idle, *(peer for peer, who in self._who.items() if not who.startswith("uid:"))]:
            self._who.pop(peer, None)  # of a name that may have been revoked the transport is asked anew
        self._idle = set(self._who)

    def of(self, peer: Peer) -> str:
        """Who this is."""
        return self._who.get(peer, ANYBODY)

    def is_own(self, identity: str) -> bool:
        """Whether this is the broker's own user."""
        return identity == self._own

    def is_admin(self, peer: Peer) -> bool:
        """Whether it may do everything."""
        return self.of(peer) in self._admins

    def is_admin_identity(self, identity: str) -> bool:
        """The same of an identity."""
        return identity in self._admins

    def level(self, session: Session, peer: Peer) -> str:
        """`write`, `read` or `none`: what this peer may do with a session."""
        return self.level_of(session, self.of(peer))

    def level_of(self, session: Session, identity: str) -> str:
        """The same of an identity."""
        if identity == session.owner or identity in self._admins:
            return "write"
        return session.shares.get(identity) or session.shares.get(EVERYBODY) or "none"

    def may_see(self, session: Session, identity: str) -> bool:
        """Whether an identity may know that there is such a session."""
        return self.level_of(session, identity) != "none"

    def check(self, session: Session, peer: Peer, *, changes: bool) -> None:
        """Raises Refusal `forbidden`. The session is one that the peer may see."""
        if changes and self.level(session, peer) == "read":
            raise Refusal("forbidden", f"session {session.label} is shared with {self.of(peer)} to read, not to change")

    def check_owner(self, session: Session, peer: Peer) -> None:
        """Raises Refusal `forbidden` for anybody but its owner and admins."""
        if self.of(peer) != session.owner and not self.is_admin(peer):
            raise Refusal("forbidden", f"session {session.label} belongs to somebody else")
