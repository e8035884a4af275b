"""Who a client is, and what of whom it may see and touch.

An identity is what a transport can vouch for: `uid:1000` for a process at a Unix socket, a key's or token's name
beyond. The broker's own user and root are admins. Nothing in a request says who sent it.
"""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer
from replbroker.core.session import Session
from replwire.faults import Refusal
from replwire.identities import Asker

EVERYBODY = "*"
ANYBODY = "anyone"  # nobody vouches for this one


class Access:
    """Identities of peers, and rights on sessions. `own` is the broker's user; `standing` tells what
    may come in under a name: something else once that was taken back and given to another."""

    def __init__(self, own: str, admins: frozenset[str], standing: Callable[[str], frozenset[object]]) -> None:
        self._own = own
        self.set_admins(admins)
        self._standing = standing
        self._who: dict[Peer, str] = {}
        self._groups: dict[Peer, tuple[int, ...]] = {}
        self._named: dict[Peer, frozenset[object]] = {}  # what the name of a key or token stood for when it was shown

    def set_admins(self, admins: frozenset[str]) -> None:
        """Who may do everything, beside the broker's own user and root."""
        self._admins = admins | {self._own, "uid:0"}

    def knows(self, peer: Peer) -> bool:
        """Whether the transport has said who this is."""
        return peer in self._who

    def meet(self, peer: Peer, identity: str, groups: tuple[int, ...] = ()) -> None:
        """This is who stands behind the connection, and the groups of a local process where the kernel tells them; a
        name that is not let in is nobody's."""
        self._named.pop(peer, None)
        self._groups.pop(peer, None)
        if groups:
            self._groups[peer] = groups
        if identity != ANYBODY and identity != self._own and not identity.startswith("uid:"):
            standing = self._standing(identity)
            if not standing:
                identity = ANYBODY
            else:
                self._named[peer] = standing
        self._who[peer] = identity

    def may_become(self, peer: Peer, identity: str) -> bool:
        """Whether a connection may show a key or token of this name: one that has shown another may not."""
        return peer not in self._named or self._who[peer] == identity

    def forget(self, peer: Peer) -> None:
        """It is gone."""
        self._who.pop(peer, None)
        self._named.pop(peer, None)
        self._groups.pop(peer, None)

    def still(self, peer: Peer) -> bool:
        """Whether its key or token is let in as it was when it was shown; a look into a file, for those alone."""
        if peer not in self._named:
            return True
        return self._named[peer] <= self._standing(self._who[peer])

    def revoked(self) -> list[Peer]:
        """Those whose key or token is not let in any more."""
        return [peer for peer in self._named if not self.still(peer)]

    def of(self, peer: Peer) -> str:
        """Who this is."""
        return self._who.get(peer, ANYBODY)

    def asker(self, peer: Peer) -> Asker:
        """The same, with the groups that it has on this machine."""
        return Asker(identity=self.of(peer), groups=self._groups.get(peer, ()))

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
        offered = "read" if identity == session.offered_to else "none"
        return session.shares.get(identity) or session.shares.get(EVERYBODY) or offered

    def may_see(self, session: Session, identity: str) -> bool:
        """Whether an identity may know that there is such a session."""
        return self.level_of(session, identity) != "none"

    def called(self, session: Session, peer: Peer) -> str:
        """Return the name of a session as this peer has to write it."""
        owned = session.name is None or session.owner == self.of(peer)
        return session.label if owned else f"{session.owner}/{session.name}"

    def check(self, session: Session, peer: Peer, *, changes: bool) -> None:
        """Raises Refusal `forbidden`. The session is one that the peer may see."""
        if changes and self.level(session, peer) == "read":
            called = self.called(session, peer)
            raise Refusal("forbidden", f"session {called} is shared with {self.of(peer)} to read, not to change")

    def check_owner(self, session: Session, peer: Peer) -> None:
        """Raises Refusal `forbidden` for anybody but its owner and admins."""
        if self.of(peer) != session.owner and not self.is_admin(peer):
            raise Refusal("forbidden", f"session {self.called(session, peer)} belongs to somebody else")
