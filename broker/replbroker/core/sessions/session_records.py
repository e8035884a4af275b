"""Session records: what outlives a session under its name, namely its epoch and the cause of its end.

An epoch is a number of one owner, name and scope, and only grows, also across brokers: the shell saves each record
before the effects that follow it. Of closed sessions the newest are remembered; of those forgotten the highest epoch is
kept as a floor, from which unknown names begin. Ephemeral and unnamed sessions have an id that is never used again, and
begin with 1.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from replbroker.core.effects import Effect, SavedSessions, SaveSession, SessionRecord
from replbroker.core.sessions.session import Session
from replbroker.core.sessions.session_registry import NameKey
from replwire.limits import MAX_CLOSED_SESSIONS

BROKER_ENDED = "the broker that had it ended unexpectedly"


class SessionRecords:
    """All records, the closed ones oldest first."""

    def __init__(self, add_effect: Callable[[Effect], None]) -> None:
        self._add_effect = add_effect
        self._floor = 0
        self._open: dict[NameKey, SessionRecord] = {}
        self._closed: dict[NameKey, SessionRecord] = {}

    def restore(self, saved: SavedSessions) -> list[SessionRecord]:
        """Take over the records of the broker before this one. Return those of sessions that were open at its end."""
        self._floor = saved.floor
        lost = [msgspec.structs.replace(each, open=False, cause=BROKER_ENDED) for each in saved.records if each.open]
        for record in (*(each for each in saved.records if not each.open), *lost):
            if record.name is not None:
                self._add_closed(record)
        return lost

    def export(self) -> SavedSessions:
        """Return all records that a broker after this one needs."""
        return SavedSessions(self._floor, [*self._closed.values(), *self._open.values()])

    def next_epoch(self, key: NameKey) -> int:
        """Return the epoch of the next worker of a name."""
        known = self._open.get(key) or self._closed.get(key)
        return (self._floor if known is None else known.epoch) + 1

    def add(self, session: Session) -> None:
        """Record a new session, and set its epoch."""
        key = _key(session)
        if session.name is not None:
            session.epoch = self.next_epoch(key)
        if not session.ephemeral:
            self._save_open(session)

    def raise_epoch(self, session: Session) -> None:
        """Set the epoch of a session's next worker."""
        session.epoch += 1
        if session.name is not None:
            self._save_open(session)

    def close(self, session: Session, cause: str | None) -> None:
        """Record the end of a session; `cause` is for the next session of its name."""
        if session.ephemeral:
            return
        self._open.pop(_key(session), None)
        record = _record(session, open=False, cause=cause)
        if session.name is not None:
            self._add_closed(record)
        self._add_effect(SaveSession(record))

    def transfer(self, session: Session, before: NameKey) -> None:
        """Record that a session has another owner, with an epoch above all that the name has had there."""
        if session.name is None:
            return
        old = msgspec.structs.replace(self._open.pop(before), open=False)
        self._add_closed(old)
        self._add_effect(SaveSession(old))
        self._save_open(session)

    def _save_open(self, session: Session) -> None:
        record = _record(session, open=True, cause=None)
        self._closed.pop(_key(session), None)
        self._open[_key(session)] = record
        self._add_effect(SaveSession(record))

    def _add_closed(self, record: SessionRecord) -> None:
        key = NameKey(record.owner, record.name or record.id, record.scope)
        self._closed.pop(key, None)
        self._closed[key] = record
        while len(self._closed) > MAX_CLOSED_SESSIONS:
            self._floor = max(self._floor, self._closed.pop(next(iter(self._closed))).epoch)


def _key(session: Session) -> NameKey:
    return NameKey(session.owner, session.label, session.scope)


def _record(session: Session, *, open: bool, cause: str | None) -> SessionRecord:
    return SessionRecord(
        owner=session.owner,
        name=session.name,
        scope=session.scope,
        id=session.id,
        epoch=session.epoch,
        open=open,
        cause=cause,
    )
