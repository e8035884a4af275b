"""Session lookup: from references in requests to sessions. A session that its sender may not see is not found.

A bare name is the sender's own. `OWNER/NAME` reaches a session that is shared with the sender, or any for an admin, and
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
    """Resolves references to sessions, and builds references."""

    def __init__(self, sessions: SessionRegistry, access: AccessControl) -> None:
        self._sessions = sessions
        self._access = access

    def key(self, reference: str, request: Request, identity: str) -> NameKey:
        """Return the owner, name and scope that a reference in a request stands for."""
        owner, name = split_reference(reference)
        return NameKey(identity if owner is None else owner, name, scope_of(name, request.project, request.agent))

    def find(self, request: Request, peer: Peer, reference: str | None = None) -> Session | None:
        """Return the session that a request is about, if its sender may see it.

        Args:
            request: The request.
            peer: Its sender.
            reference: Another reference in the request, in place of its target.
        """
        reference = reference or request.target
        return None if reference is None else self._find(reference, request, self._access.identity_of(peer))

    def get(self, request: Request, peer: Peer) -> Session:
        """Return the session that a request is about.

        Raises:
            RequestError: `session-not-found`, with the cause of its end for its owner.
        """
        session = self.find(request, peer)
        if session is None:
            raise self.not_found(request, peer)
        return session

    def _find(self, reference: str, request: Request, identity: str) -> Session | None:
        owner, name = split_reference(reference)
        scope = scope_of(name, request.project, request.agent)
        found = self._sessions.by_name.get((identity if owner is None else owner, name), {}).get(scope)
        if found is None and owner is not None and owner != identity:
            named = self._sessions.find_all_by_name(owner, name)
            visible = [each for each in named if self._access.may_see(each, identity)]
            found = visible[0] if len(visible) == 1 else None
        if found is None:
            found = self._sessions.find_by_id(reference)
        if found is None or found.owner == identity or self._access.may_see(found, identity):
            return found
        return None

    def not_found(self, request: Request, peer: Peer) -> RequestError:
        """Return the error for a reference to no session, or to none that its sender may see."""
        reference, identity = request.target or "", self._access.identity_of(peer)
        key = self.key(reference, request, identity)
        may_know = key.owner == identity or self._access.is_admin_identity(identity)
        cause = self._sessions.end_cause(key) or self._sessions.end_cause(NameKey(identity, reference))
        return RequestError(
            "session-not-found",
            f"Session not found: {reference}",
            cause=cause if may_know else None,
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
