"""Greetings: a connection is told once of the directory of its first session, and of one that lies elsewhere."""

from __future__ import annotations

from collections import OrderedDict

from replbroker.core.effects import Peer
from replbroker.core.sessions.session import Session

_MAX_PEERS = 10_000  # the one that was told longest ago is told again
_MAX_SESSIONS = 1000  # of one peer


class Greetings:
    """Greetings that each peer had, until its connection ends; bounded all the same."""

    def __init__(self) -> None:
        self._greeted: OrderedDict[Peer, set[str]] = OrderedDict()  # ids of sessions that lie elsewhere

    def forget(self, peer: Peer) -> None:
        """Remove a peer whose connection has ended."""
        self._greeted.pop(peer, None)

    def is_first(self, peer: Peer) -> bool:
        """Return whether no session was named to this peer before, as one is now."""
        if peer in self._greeted:
            self._greeted.move_to_end(peer)
            return False
        self._greeted[peer] = set()
        if len(self._greeted) > _MAX_PEERS:
            self._greeted.popitem(last=False)
        return True

    def directory_notice(self, peer: Peer, session: Session, directory: str | None) -> str | None:
        """Return a notice that a named session has another directory than its user is in; the first time alone."""
        own = session.directory
        if session.scope or own is None or directory is None or _is_within(directory, own):
            return None
        told = self._greeted.setdefault(peer, set())
        if session.id in told or len(told) >= _MAX_SESSIONS:
            return None
        told.add(session.id)
        return f"session {session.label} works in {own}, not in {directory}"


def _is_within(directory: str, own: str) -> bool:
    directory, own = directory.rstrip("/"), own.rstrip("/")
    return directory == own or directory.startswith(f"{own}/")
