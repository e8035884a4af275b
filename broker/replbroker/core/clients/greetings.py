"""Greetings: each connection is told once of the working directory of its first session, and of one that differs."""

from __future__ import annotations

from collections import OrderedDict

from replbroker.core.effects import Peer
from replbroker.core.sessions.session import Session

_MAX_PEERS = 10_000  # beyond, the one greeted longest ago is greeted again
_MAX_SESSIONS = 1000  # of one peer


class Greetings:
    """The greetings that each peer had, until its connection ends; bounded all the same."""

    def __init__(self) -> None:
        self._greeted: OrderedDict[Peer, set[str]] = OrderedDict()  # ids of sessions in another directory

    def forget(self, peer: Peer) -> None:
        """Remove a peer whose connection has ended."""
        self._greeted.pop(peer, None)

    def is_first(self, peer: Peer) -> bool:
        """Return whether a peer is now told of a session for the first time."""
        if peer in self._greeted:
            self._greeted.move_to_end(peer)
            return False
        self._greeted[peer] = set()
        if len(self._greeted) > _MAX_PEERS:
            self._greeted.popitem(last=False)
        return True

    def directory_notice(self, peer: Peer, session: Session, directory: str | None) -> str | None:
        """Return a notice that a named session is in another directory than its user; the first time only.

        Args:
            peer: The connection.
            session: The session it uses.
            directory: The user's directory, if the request names it.
        """
        if directory is None or session.scope:
            return None
        own = session.directory
        if own is None or _is_within(directory, own):
            return None
        greeted = self._greeted.setdefault(peer, set())
        if session.id in greeted or len(greeted) >= _MAX_SESSIONS:
            return None
        greeted.add(session.id)
        return f"session {session.label} works in {own}, not in {directory}"


def _is_within(directory: str, own: str) -> bool:
    directory, own = directory.rstrip("/"), own.rstrip("/")
    return directory == own or directory.startswith(f"{own}/")
