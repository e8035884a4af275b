"""Session records: which sessions are open, and what outlives one under its name: its epoch and the cause of its end.

An epoch is a number of one owner, name and scope, and only grows, also across brokers: records are saved before the
effects of the call that has changed them. Of closed sessions the newest are remembered; of those forgotten the highest
epoch is kept as a floor, from which unknown names begin. Ephemeral and unnamed sessions have an id that is never used
again, and begin with 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from replbroker.core.records import SavedState, SessionRecord
from replbroker.core.sessions.change_log import ChangeLog
from replbroker.core.sessions.session import Session
from replbroker.core.sessions.session_registry import NameKey
from replwire.limits import MAX_CLOSED_SESSIONS

BROKER_ENDED = "the broker that had it ended unexpectedly"
MACHINE_RESTARTED = "the machine was restarted"


class SessionRecords:
    """Epochs of all names, and the records of closed sessions, oldest first."""

    def __init__(self, changes: ChangeLog) -> None:
        self._changes = changes
        self._floor = 0
        self._open: dict[NameKey, Session] = {}
        self._closed: dict[NameKey, SessionRecord] = {}

    def restore_closed(self, saved: SavedState, lost: list[SessionRecord]) -> list[SessionRecord]:
        """Take over the records of sessions that are open no more, because they are lost or were closed before.

        Returns:
            The records of the lost ones, with the cause.
        """
        self._floor = saved.floor
        cause = MACHINE_RESTARTED if saved.machine_restarted else BROKER_ENDED
        ended = [msgspec.structs.replace(each, open=False, cause=cause, details=None) for each in lost]
        for record in (*(each for each in saved.sessions if not each.open), *ended):
            if record.name is not None:
                self._add_closed(record)
        return ended

    def restore_open(self, session: Session) -> None:
        """Take over an open session, which has its epoch."""
        self._open[_key(session)] = session

    def export(self) -> tuple[int, list[SessionRecord]]:
        """Return the floor and all session records that a broker after this one needs."""
        return self._floor, [*self._closed.values(), *map(self._changes.session_record, self._open.values())]

    def open_sessions(self) -> Iterator[Session]:
        """Yield the open sessions, the oldest first."""
        yield from self._open.values()

    def next_epoch(self, key: NameKey) -> int:
        """Return the epoch of the next worker of a name."""
        known = self._open.get(key) or self._closed.get(key)
        return (self._floor if known is None else known.epoch) + 1

    def add(self, session: Session) -> None:
        """Record a new session, and set its epoch."""
        key = _key(session)
        if session.name is not None:
            session.epoch = self.next_epoch(key)
        self._closed.pop(key, None)
        self._open[key] = session
        self._changes.touch_session(session)

    def raise_epoch(self, session: Session) -> None:
        """Set the epoch of a session's next worker."""
        session.epoch += 1
        self._changes.touch_session(session)

    def close(self, session: Session, cause: str | None) -> None:
        """Record the end of a session; `cause` is for the next session of its name."""
        self._open.pop(_key(session), None)
        record = _closed_record(session, cause)
        if session.name is not None:
            self._add_closed(record)
        self._changes.add_closed(record)

    def transfer(self, session: Session, before: NameKey, epoch_before: int) -> None:
        """Record that a session has another owner, with an epoch above all that the name has had there."""
        del self._open[before]
        old = SessionRecord(before.owner, session.name, session.id, epoch_before, open=False, scope=before.scope)
        if session.name is not None:
            self._add_closed(old)
        self._changes.add_closed(old)
        key = _key(session)
        self._closed.pop(key, None)
        self._open[key] = session
        self._changes.touch_session(session)

    def _add_closed(self, record: SessionRecord) -> None:
        key = NameKey(record.owner, record.name or record.id, record.scope)
        self._closed.pop(key, None)
        self._closed[key] = record
        while len(self._closed) > MAX_CLOSED_SESSIONS:
            self._floor = max(self._floor, self._closed.pop(next(iter(self._closed))).epoch)


def _key(session: Session) -> NameKey:
    return NameKey(session.owner, session.label, session.scope)


def _closed_record(session: Session, cause: str | None) -> SessionRecord:
    return SessionRecord(
        owner=session.owner,
        name=session.name,
        scope=session.scope,
        id=session.id,
        epoch=session.epoch,
        open=False,
        cause=None if session.ephemeral else cause,
    )
