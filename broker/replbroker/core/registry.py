"""All sessions, by id and by name, and a note on each one that is gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from replbroker.core.session import Session
from replwire.faults import Refusal

_NOTES = 1000  # sessions that are gone and still remembered


class Registry:
    """The only place that knows which sessions exist."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_name: dict[str, Session] = {}
        self._gone: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def find(self, key: str) -> Session | None:
        """A session by id, else by name."""
        return self._by_id.get(key) or self._by_name.get(key)

    def get(self, key: str) -> Session:
        """The same, or Refusal `session-not-found` that says what became of it."""
        session = self.find(key)
        if session is None:
            why, _ = self._gone.get(key, (None, False))
            raise Refusal(
                "session-not-found",
                f"Session not found: {key}",
                cause=why,
                hint="send `if-missing`: `create` with the eval, or open it with `new-session`",
            )
        return session

    def gone(self, key: str) -> str | None:
        """How the last session of this name went, when that is known and nobody had asked for it."""
        why, asked = self._gone.get(key, (None, True))
        return None if asked else why

    def add(self, session: Session) -> None:
        """Register. The caller has checked that the name is free."""
        self._by_id[session.id] = session
        if session.name is not None:
            self._by_name[session.name] = session

    def remove(self, session: Session, why: str, *, asked: bool) -> None:
        """Forget the session and keep a note under its name and id."""
        del self._by_id[session.id]
        if session.name is not None:
            del self._by_name[session.name]
        if not session.ephemeral:
            self.note(session.id, why, asked=asked)
            if session.name is not None:
                self.note(session.name, why, asked=asked)

    def note(self, key: str, why: str, *, asked: bool = False) -> None:
        """Remember how a session went; the oldest note goes when there are too many."""
        self._gone[key] = (why, asked)
        self._gone.move_to_end(key)
        if len(self._gone) > _NOTES:
            self._gone.popitem(last=False)

    def named(self) -> list[str]:
        """Names (or ids) of all sessions that are not throw-away."""
        return [session.label for session in self._by_id.values() if not session.ephemeral]
