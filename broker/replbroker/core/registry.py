"""All sessions, by id and by owner and name, and a note on each one that is gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from replbroker.core.session import Session
from replwire.limits import MAX_CLOSED_SESSIONS

_NOTES = 2 * MAX_CLOSED_SESSIONS  # each under its name and its id


class NameKey(NamedTuple):
    """The place of a name: each owner has its own names, and `default` once in each scope."""

    owner: str
    name: str
    scope: str = ""


class Registry:
    """The only place that knows which sessions exist. It knows no rights: see `lookup`."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_name: dict[tuple[str, str], dict[str, Session]] = {}  # by owner and name, then by scope
        self._gone: OrderedDict[NameKey, tuple[str, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def with_id(self, id: str) -> Session | None:
        """The session of this id."""
        return self._by_id.get(id)

    def named(self, key: NameKey) -> Session | None:
        """The session of this owner, name and scope."""
        return self._by_name.get((key.owner, key.name), {}).get(key.scope)

    def all_named(self, owner: str, name: str) -> list[Session]:
        """An owner's sessions of this name, of every scope."""
        return list(self._by_name.get((owner, name), {}).values())

    def cause(self, key: NameKey) -> str | None:
        """How the last session of this name went."""
        return self._gone.get(key, (None, False))[0]

    def gone(self, key: NameKey) -> str | None:
        """The same, when nobody had asked for that."""
        why, asked = self._gone.get(key, (None, True))
        return None if asked else why

    def add(self, session: Session) -> None:
        """Register. The caller has checked that the name is free."""
        self._by_id[session.id] = session
        if session.name is not None:
            self._by_name.setdefault((session.owner, session.name), {})[session.scope] = session

    def remove(self, session: Session, why: str, *, asked: bool) -> None:
        """Forget the session and keep a note for its owner, under its name and id."""
        del self._by_id[session.id]
        self._unname(session)
        if not session.ephemeral:
            self.note(NameKey(session.owner, session.id), why, asked=asked)
            if session.name is not None:
                self.note(NameKey(session.owner, session.name, session.scope), why, asked=asked)

    def transfer(self, session: Session, owner: str) -> None:
        """Make it another owner's. The caller has checked that the name is free there."""
        self._unname(session)
        session.owner = owner
        self.add(session)

    def _unname(self, session: Session) -> None:
        if session.name is not None:
            scopes = self._by_name[session.owner, session.name]
            del scopes[session.scope]
            if not scopes:
                del self._by_name[session.owner, session.name]

    def note(self, key: NameKey, why: str, *, asked: bool = False) -> None:
        """Remember how a session went; the oldest note goes when there are too many."""
        self._gone[key] = (why, asked)
        self._gone.move_to_end(key)
        if len(self._gone) > _NOTES:
            self._gone.popitem(last=False)
