"""From references to sessions. What its sender may not see is not found, just as what does not exist.

A bare name is the asker's own. `OWNER/NAME` reaches a session that is shared with the asker, or any for an admin, and
so does an id.
"""

from __future__ import annotations

from replbroker.core.clients.access_control import AccessControl
from replbroker.core.effects import Peer
from replbroker.core.sessions.session import Session
from replbroker.core.sessions.session_registry import NameKey, SessionRegistry
from replwire.faults import RequestError
from replwire.identifiers import scope_of, split_reference
from replwire.ops import Request


class SessionLookup:
    """From references to sessions, and back, for one asker at a time."""

    def __init__(self, sessions: SessionRegistry, access: AccessControl) -> None:
        self._sessions = sessions
        self._access = access

    def key(self, reference: str, request: Request, identity: str) -> NameKey:
        """Return a reference as a name."""
        owner, name = split_reference(reference)
        return NameKey(identity if owner is None else owner, name, scope_of(name, request.project, request.agent))

    def find(self, request: Request, peer: Peer, reference: str | None = None) -> Session | None:
        """The session that a request is about, or that a reference in it means, if its sender may see one there."""
        reference = reference or request.target
        return None if reference is None else self._find(reference, request, self._access.identity_of(peer))

    def get(self, request: Request, peer: Peer) -> Session:
        """The same, or Refusal `session-not-found`, which says to its owner what became of it."""
        session = self.find(request, peer)
        if session is None:
            raise self.not_found(request, peer)
        return session

    def _find(self, reference: str, request: Request, identity: str) -> Session | None:
        key = self.key(reference, request, identity)
        found = self._sessions.find_by_name(key)
        if found is None and key.owner != identity:
            visible = [
                each for each in self._sessions.find_all_by_name(key.owner, key.name) if self._sees(identity, each)
            ]
            found = visible[0] if len(visible) == 1 else None
        found = found or self._sessions.find_by_id(reference)
        return found if found is not None and self._sees(identity, found) else None

    def _sees(self, identity: str, session: Session) -> bool:
        return self._access.may_see(session, identity)

    def not_found(self, request: Request, peer: Peer) -> RequestError:
        """The refusal of a reference that means no session, or none that its sender may see."""
        reference, identity = request.target or "", self._access.identity_of(peer)
        key = self.key(reference, request, identity)
        known = key.owner == identity or self._access.is_admin_identity(identity)
        cause = (
            self._sessions.end_cause(key) or self._sessions.end_cause(NameKey(identity, reference)) if known else None
        )
        return RequestError(
            "session-not-found",
            f"Session not found: {reference}",
            cause=cause,
            hint="send `if-missing`: `create` with the eval, or open it with `new-session`",
        )

    def reference(self, session: Session, request: Request, peer: Peer) -> str:
        """Return the reference to a session in a request like this: its name, OWNER/NAME, or its id."""
        identity = self._access.identity_of(peer)
        if session.name is not None:
            short = session.name if session.owner == identity else f"{session.owner}/{session.name}"
            if self._find(short, request, identity) is session:
                return short
        return session.id
