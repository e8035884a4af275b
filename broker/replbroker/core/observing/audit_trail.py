"""Who asked what, how it ended, how long that took: one record for each request, told once it has its last answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from replbroker.core.effects import Audit, Effect, Peer

BROKER = "broker"  # who did what no client asked for
_MAX_TEXT_CHARS = 256  # of what a client chose: an op, a name, a sentence
_NO_FAULT = ("done", "error")


class _OpenRequest(NamedTuple):
    since: float
    identity: str
    op: str | None
    agent: str | None
    session: str | None


class AuditTrail:
    """Requests that are not answered yet. A request that uses an id again before its answer ends the earlier one."""

    def __init__(self, emit: Callable[[Effect], None], who: Callable[[Peer], str], enabled: bool) -> None:
        self._emit = emit
        self._identity_of = who
        self._enabled = enabled
        self._open: dict[Peer, dict[str, _OpenRequest]] = {}
        self._reused_ids: set[Peer] = set()  # who has used an id again: more of its requests may run than are open
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def has_pending(self, peer: Peer) -> bool:
        """Whether a request of this peer is not answered yet."""
        return peer in self._open

    def has_used(self, peer: Peer) -> bool:
        """Whether anything may still be on its way to this peer."""
        return peer in self._open or peer in self._reused_ids

    def pending_ids(self, peer: Peer) -> list[str]:
        """The ids of those requests."""
        return list(self._open.get(peer, ()))

    @property
    def now(self) -> float:
        """The moment of what is done."""
        return self._now

    def set_time(self, now: float) -> None:
        """The moment of what is told next."""
        self._now = now

    def begin(self, peer: Peer, raw: dict[str, Any]) -> None:
        """A request has come whose envelope is whole."""
        request_id = raw["id"]
        if request_id in self._open.get(peer, ()):
            self._record(peer, request_id, "id-used-again", None)
            self._reused_ids.add(peer)
        asked = _text(raw.get("op")), _text(raw.get("agent")), _text(raw.get("session"))
        self._open.setdefault(peer, {})[request_id] = _OpenRequest(self._now, self._identity_of(peer), *asked)

    def set_session(self, peer: Peer, request_id: str, session: str) -> None:
        """The session that it is about, where `session` does not say it: `close` and `clone` know older words."""
        mine = self._open[peer]
        mine[request_id] = mine[request_id]._replace(session=_text(session))

    def finish(self, peer: Peer, request_id: str, status: list[str], err: str | None) -> None:
        """It has its last answer. One that never began was no request: it is told all the same."""
        more = next((word for word in status if word not in _NO_FAULT), None)
        self._record(peer, request_id, more or ("error" if "error" in status else "ok"), err)

    def record_unanswered(self, peer: Peer, request_id: str, outcome: str, err: str, count: int) -> None:
        """So many requests were refused and nobody was told: one record, with the newest id."""
        if self._enabled:
            asked = (request_id[:_MAX_TEXT_CHARS], None, None, None)
            self._emit(Audit(peer, self._identity_of(peer), self._now, *asked, outcome, _text(err), 0.0, count))

    def on_peer_lost(self, peer: Peer) -> None:
        """Nobody is there to be answered any more."""
        self._reused_ids.discard(peer)
        for request_id in self.pending_ids(peer):
            self._record(peer, request_id, "client-gone", None)

    def record_own(self, op: str | None, agent: str | None, session: str | None, outcome: str, err: str | None) -> None:
        """The broker has done something that no client asked for."""
        if self._enabled:
            self._emit(Audit(b"", BROKER, self._now, "", op, agent, session, outcome, _text(err), 0.0))

    def _record(self, peer: Peer, request_id: str, outcome: str, err: str | None) -> None:
        mine = self._open.get(peer, {})
        begun = mine.pop(request_id, None) or _OpenRequest(self._now, self._identity_of(peer), None, None, None)
        if not mine:
            self._open.pop(peer, None)
        if not self._enabled:
            return
        latency = round((self._now - begun.since) * 1000, 3)
        asked = (request_id[:_MAX_TEXT_CHARS], begun.op, begun.agent, begun.session)
        self._emit(Audit(peer, begun.identity, self._now, *asked, outcome, _text(err), latency))


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT_CHARS] if isinstance(value, str) else None
