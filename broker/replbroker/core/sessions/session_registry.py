"""The session registry: all sessions by id and by owner and name, and the causes of the ends of former ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from replbroker.core.sessions.session import Session
from replwire.limits import MAX_CLOSED_SESSIONS

_MAX_END_CAUSES = 2 * MAX_CLOSED_SESSIONS  # each under its name and its id


class NameKey(NamedTuple):
    """A name: each owner has its own names, and `default` once in each scope."""

    owner: str
    name: str
    scope: str = ""


class SessionRegistry:
    """The one place that knows which sessions exist. It checks no rights: see `SessionLookup`.

    Attributes:
        by_name: Sessions by owner and name, then by scope.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self.by_name: dict[tuple[str, str], dict[str, Session]] = {}
        self._end_causes: dict[str, OrderedDict[NameKey, tuple[str, bool]]] = {}  # by owner
        self._end_cause_count = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def find_by_id(self, id: str) -> Session | None:
        """Return the session of this id."""
        return self._by_id.get(id)

    def find_by_name(self, key: NameKey) -> Session | None:
        """Return the session of this owner, name and scope."""
        return self.by_name.get((key.owner, key.name), {}).get(key.scope)

    def find_all_by_name(self, owner: str, name: str) -> list[Session]:
        """Return an owner's sessions of this name, of every scope."""
        return list(self.by_name.get((owner, name), {}).values())

    def end_cause(self, key: NameKey) -> str | None:
        """Return why the last session of this name ended."""
        return self._end_cause_of(key)[0]

    def unexpected_end_cause(self, key: NameKey) -> str | None:
        """Return why the last session of this name ended, unless a client had asked for that."""
        why, asked = self._end_cause_of(key)
        return None if asked else why

    def _end_cause_of(self, key: NameKey) -> tuple[str | None, bool]:
        mine = self._end_causes.get(key.owner)
        return (None, True) if mine is None else mine.get(key, (None, True))

    def add(self, session: Session) -> None:
        """Register a session. The caller has checked that the name is free."""
        self._by_id[session.id] = session
        if session.name is not None:
            self.by_name.setdefault((session.owner, session.name), {})[session.scope] = session

    def remove(self, session: Session, why: str, *, asked: bool) -> None:
        """Remove a session, and record for its owner why it ended, under its name and id.

        Args:
            session: The session.
            why: The cause.
            asked: A client has asked for its end.
        """
        del self._by_id[session.id]
        self._remove_name(session)
        if not session.ephemeral:
            self.record_end(NameKey(session.owner, session.id), why, asked=asked)
            if session.name is not None:
                self.record_end(NameKey(session.owner, session.name, session.scope), why, asked=asked)

    def transfer(self, session: Session, owner: str) -> None:
        """Give a session another owner. The caller has checked that the name is free there."""
        self._remove_name(session)
        session.owner = owner
        self.add(session)

    def _remove_name(self, session: Session) -> None:
        if session.name is not None:
            scopes = self.by_name[session.owner, session.name]
            del scopes[session.scope]
            if not scopes:
                del self.by_name[session.owner, session.name]

    def record_end(self, key: NameKey, why: str, *, asked: bool = False) -> None:
        """Record why a session ended.

        When there are too many records, the oldest of the owner who has most is dropped: no owner displaces another's.
        """
        mine = self._end_causes.setdefault(key.owner, OrderedDict())
        self._end_cause_count += key not in mine
        mine[key] = (why, asked)
        mine.move_to_end(key)
        if self._end_cause_count > _MAX_END_CAUSES:
            owner, most = max(self._end_causes.items(), key=lambda pair: len(pair[1]))
            most.popitem(last=False)
            self._end_cause_count -= 1
            if not most:
                del self._end_causes[owner]
