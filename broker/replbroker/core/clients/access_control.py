"""Who a client is, and what of whom it may see and touch.

An identity is what a transport can vouch for: `uid:1000` for a process at a Unix socket, a key's or token's name
beyond. The broker's own user and root are admins. Nothing in a request says who sent it.
"""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer
from replbroker.core.sessions.session import Session
from replwire.faults import RequestError
from replwire.identities import Principal

EVERYONE = "*"
ANONYMOUS = "anyone"  # nobody vouches for this one


class AccessControl:
    """Identities of peers, and rights on sessions. `own` is the broker's user; `standing` tells what
    may come in under a name: something else once that was taken back and given to another."""

    def __init__(self, own: str, admins: frozenset[str], standing: Callable[[str], frozenset[object]]) -> None:
        self._broker_user = own
        self.set_admins(admins)
        self._credentials_of = standing
        self._identities: dict[Peer, str] = {}
        self._groups: dict[Peer, tuple[int, ...]] = {}
        self._credentials: dict[
            Peer, frozenset[object]
        ] = {}  # what the name of a key or token stood for when it was shown

    def set_admins(self, admins: frozenset[str]) -> None:
        """Who may do everything, beside the broker's own user and root."""
        self._admins = admins | {self._broker_user, "uid:0"}

    def is_registered(self, peer: Peer) -> bool:
        """Whether the transport has said who this is."""
        return peer in self._identities

    def register(self, peer: Peer, identity: str, groups: tuple[int, ...] = ()) -> None:
        """This is who stands behind the connection, and the groups of a local process where the kernel tells them; a
        name that is not let in is nobody's."""
        self._credentials.pop(peer, None)
        self._groups.pop(peer, None)
        if groups:
            self._groups[peer] = groups
        if identity != ANONYMOUS and identity != self._broker_user and not identity.startswith("uid:"):
            standing = self._credentials_of(identity)
            if not standing:
                identity = ANONYMOUS
            else:
                self._credentials[peer] = standing
        self._identities[peer] = identity

    def may_become(self, peer: Peer, identity: str) -> bool:
        """Whether a connection may show a key or token of this name: one that has shown another may not."""
        return peer not in self._credentials or self._identities[peer] == identity

    def forget(self, peer: Peer) -> None:
        """It is gone."""
        self._identities.pop(peer, None)
        self._credentials.pop(peer, None)
        self._groups.pop(peer, None)

    def is_valid(self, peer: Peer) -> bool:
        """Whether its key or token is let in as it was when it was shown; a look into a file, for those alone."""
        if peer not in self._credentials:
            return True
        return self._credentials[peer] <= self._credentials_of(self._identities[peer])

    def find_revoked(self) -> list[Peer]:
        """Those whose key or token is not let in any more."""
        return [peer for peer in self._credentials if not self.is_valid(peer)]

    def identity_of(self, peer: Peer) -> str:
        """Who this is."""
        return self._identities.get(peer, ANONYMOUS)

    def principal_of(self, peer: Peer) -> Principal:
        """The same, with the groups that it has on this machine."""
        return Principal(identity=self.identity_of(peer), groups=self._groups.get(peer, ()))

    def is_broker_user(self, identity: str) -> bool:
        """Whether this is the broker's own user."""
        return identity == self._broker_user

    def is_admin(self, peer: Peer) -> bool:
        """Whether it may do everything."""
        return self.identity_of(peer) in self._admins

    def is_admin_identity(self, identity: str) -> bool:
        """The same of an identity."""
        return identity in self._admins

    def level(self, session: Session, peer: Peer) -> str:
        """`write`, `read` or `none`: what this peer may do with a session."""
        return self.level_of(session, self.identity_of(peer))

    def level_of(self, session: Session, identity: str) -> str:
        """The same of an identity."""
        if identity == session.owner or identity in self._admins:
            return "write"
        offered = "read" if identity == session.offered_to else "none"
        return session.shares.get(identity) or session.shares.get(EVERYONE) or offered

    def may_see(self, session: Session, identity: str) -> bool:
        """Whether an identity may know that there is such a session."""
        return self.level_of(session, identity) != "none"

    def called(self, session: Session, peer: Peer) -> str:
        """Return the name of a session as this peer has to write it."""
        owned = session.name is None or session.owner == self.identity_of(peer)
        return session.label if owned else f"{session.owner}/{session.name}"

    def check(self, session: Session, peer: Peer, *, changes: bool) -> None:
        """Raises Refusal `forbidden`. The session is one that the peer may see."""
        if changes and self.level(session, peer) == "read":
            called = self.called(session, peer)
            raise RequestError(
                "forbidden", f"session {called} is shared with {self.identity_of(peer)} to read, not to change"
            )

    def check_owner(self, session: Session, peer: Peer) -> None:
        """Raises Refusal `forbidden` for anybody but its owner and admins."""
        if self.identity_of(peer) != session.owner and not self.is_admin(peer):
            raise RequestError("forbidden", f"session {self.called(session, peer)} belongs to somebody else")
