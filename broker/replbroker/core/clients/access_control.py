"""Access control: the identities of clients, and their rights on sessions.

An identity is what a transport can vouch for: `uid:1000` for a process at a Unix socket, else the name of a key or
token. The broker's own user and root are admins. No field of a request says who sent it.
"""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import Holder
from replbroker.core.sessions.session import Session
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS, Principal
from replwire.ops import Request

EVERYONE = "*"


class _Identities(dict[Peer, str]):
    """The identity of each peer; ANONYMOUS for all others."""

    def __missing__(self, peer: Peer) -> str:
        return ANONYMOUS


class AccessControl:
    """Identities of peers, and rights on sessions.

    Attributes:
        admins: The identities that may do everything.
        identity_of: Returns the identity of a peer.
        credentials: The keys and tokens that were valid for a peer's name when it showed one.
    """

    def __init__(
        self, broker_user: str, admins: frozenset[str], credentials_of: Callable[[str], frozenset[object]]
    ) -> None:
        """Create the identities.

        Args:
            broker_user: The identity of the broker's own user.
            admins: Further admins.
            credentials_of: Returns the keys and tokens that are valid for a name. They change when the name is taken
                back and given to somebody else.
        """
        self._broker_user = broker_user
        self.set_admins(admins)
        self._credentials_of = credentials_of
        self._identities = _Identities()
        self.identity_of: Callable[[Peer], str] = self._identities.__getitem__
        self._groups: dict[Peer, tuple[int, ...]] = {}
        self.credentials: dict[Peer, frozenset[object]] = {}  # those of its name when a peer showed a key or token

    def set_admins(self, admins: frozenset[str]) -> None:
        """Set the admins beside the broker's own user and root."""
        self.admins = admins | {self._broker_user, "uid:0"}

    # --- identities ---

    def is_registered(self, peer: Peer) -> bool:
        """Return whether the transport has identified a peer."""
        return peer in self._identities

    def register(self, peer: Peer, identity: str, groups: tuple[int, ...] = ()) -> None:
        """Set the identity of a peer. A name without valid keys or tokens is anonymous.

        Args:
            peer: The connection.
            identity: The identity that the transport vouches for.
            groups: The groups of a local process, as the kernel reports them.
        """
        self.credentials.pop(peer, None)
        self._groups.pop(peer, None)
        if groups:
            self._groups[peer] = groups
        if identity != ANONYMOUS and identity != self._broker_user and not identity.startswith("uid:"):
            credentials = self._credentials_of(identity)
            if not credentials:
                identity = ANONYMOUS
            else:
                self.credentials[peer] = credentials
        self._identities[peer] = identity

    def may_become(self, peer: Peer, identity: str) -> bool:
        """Return whether a connection may show a key or token of this name: not after one of another name."""
        return peer not in self.credentials or self._identities[peer] == identity

    def forget(self, peer: Peer) -> None:
        """Remove a peer."""
        self._identities.pop(peer, None)
        self.credentials.pop(peer, None)
        self._groups.pop(peer, None)

    def is_valid(self, peer: Peer) -> bool:
        """Return whether a peer's key or token is valid as it was when it was shown. Reads a file, for those alone."""
        credentials = self.credentials.get(peer)
        return credentials is None or credentials <= self._credentials_of(self._identities[peer])

    def find_revoked(self) -> list[Peer]:
        """Return the peers whose key or token is no longer valid."""
        return [peer for peer in self.credentials if not self.is_valid(peer)]

    def principal_of(self, peer: Peer) -> Principal:
        """Return a peer's identity, with the groups that it has on this machine."""
        return Principal(identity=self.identity_of(peer), groups=self._groups.get(peer, ()))

    def holder_of(self, request: Request, peer: Peer) -> Holder:
        """Return the account to charge for a request: its agent's, or that of a connection that names none."""
        return Holder(self.identity_of(peer), request.agent or f"peer {peer.hex()}")

    # --- rights ---

    def is_admin(self, peer: Peer) -> bool:
        """Return whether a peer may do everything."""
        return self.identity_of(peer) in self.admins

    def is_admin_identity(self, identity: str) -> bool:
        """Return whether an identity may do everything."""
        return identity in self.admins

    def level(self, session: Session, peer: Peer) -> str:
        """Return a peer's right on a session: `write`, `read` or `none`."""
        return self.level_of(session, self.identity_of(peer))

    def level_of(self, session: Session, identity: str) -> str:
        """Return an identity's right on a session: `write`, `read` or `none`."""
        if identity == session.owner or identity in self.admins:
            return "write"
        offered = "read" if identity == session.offered_to else "none"
        return session.shares.get(identity) or session.shares.get(EVERYONE) or offered

    def may_see(self, session: Session, identity: str) -> bool:
        """Return whether an identity may know that a session exists."""
        return identity == session.owner or self.level_of(session, identity) != "none"

    def name_for(self, session: Session, peer: Peer) -> str:
        """Return the name of a session as a peer has to write it."""
        is_own = session.name is None or session.owner == self.identity_of(peer)
        return session.label if is_own else f"{session.owner}/{session.name}"

    def check(self, session: Session, peer: Peer, *, changes: bool) -> None:
        """Raise RequestError `forbidden` when a peer that may see a session may not change it."""
        if changes and self.level(session, peer) == "read":
            identity = self.identity_of(peer)
            name = self.name_for(session, peer)
            raise RequestError("forbidden", f"session {name} is shared with {identity} to read, not to change")

    def check_owner(self, session: Session, peer: Peer) -> None:
        """Raise RequestError `forbidden` for everybody but its owner and admins."""
        if self.identity_of(peer) != session.owner and not self.is_admin(peer):
            raise RequestError("forbidden", f"session {self.name_for(session, peer)} belongs to another user")
