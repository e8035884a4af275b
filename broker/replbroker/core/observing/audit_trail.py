"""The audit trail: one record for each request, with its sender, outcome and latency, once it has its final reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from replbroker.core.clock import CoreClock
from replbroker.core.effects import Audit, Effect, Peer

BROKER = "broker"  # the identity in records of actions that no client asked for
_MAX_TEXT_CHARS = 256  # of a text that a client chose: an op, a name, a sentence


class _OpenRequest(NamedTuple):
    """A request without its final reply."""

    since: float
    identity: str
    op: str | None
    agent: str | None
    session: str | None


class AuditTrail:
    """Requests that are not answered yet. A request that reuses an id before its reply ends the earlier one."""

    def __init__(
        self,
        add_effect: Callable[[Effect], None],
        identity_of: Callable[[Peer], str],
        clock: CoreClock,
        *,
        enabled: bool,
    ) -> None:
        self._add_effect = add_effect
        self._identity_of = identity_of
        self._clock = clock
        self._enabled = enabled
        self._open: dict[Peer, dict[str, _OpenRequest]] = {}
        self._reused_ids: set[Peer] = set()  # peers that reused an id: more of their requests may run than are open

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def has_pending(self, peer: Peer) -> bool:
        """Return whether a request of this peer is not answered yet."""
        return peer in self._open

    def has_used(self, peer: Peer) -> bool:
        """Return whether any reply may still be on its way to this peer."""
        return peer in self._open or peer in self._reused_ids

    def pending_ids(self, peer: Peer) -> list[str]:
        """Return the ids of this peer's open requests."""
        return list(self._open.get(peer, ()))

    def begin(self, peer: Peer, raw: dict[str, Any]) -> None:
        """Open a record for a request whose envelope is valid."""
        request_id = raw["id"]
        mine = self._open.get(peer)
        if mine is None:
            mine = self._open[peer] = {}
        elif request_id in mine:
            self._record(peer, request_id, "id-used-again", None)
            self._reused_ids.add(peer)
            mine = self._open.setdefault(peer, {})
        get = raw.get
        op, agent, session = get("op"), get("agent"), get("session")
        mine[request_id] = _OpenRequest(
            self._clock.now,
            self._identity_of(peer),
            op[:_MAX_TEXT_CHARS] if type(op) is str else None,
            agent[:_MAX_TEXT_CHARS] if type(agent) is str else None,
            session[:_MAX_TEXT_CHARS] if type(session) is str else None,
        )

    def set_session(self, peer: Peer, request_id: str, session: str) -> None:
        """Set the session of a request that names it in another field: `close` and `clone` have older ones."""
        mine = self._open[peer]
        mine[request_id] = mine[request_id]._replace(session=_clip(session))

    def finish(self, peer: Peer, request_id: str, status: list[str], err: str | None) -> None:
        """Write the record of a request that has its final reply. Malformed requests are audited too."""
        outcome = "ok"
        for word in status:
            if word == "error":
                outcome = "error"
            elif word != "done":
                outcome = word
                break
        self._record(peer, request_id, outcome, err)

    def record_unanswered(self, peer: Peer, request_id: str, outcome: str, err: str, count: int) -> None:
        """Write one record, with the newest id, for requests that were refused without a reply."""
        if self._enabled:
            identity = self._identity_of(peer)
            asked = (request_id[:_MAX_TEXT_CHARS], None, None, None)
            self._add_effect(Audit(peer, identity, self._clock.now, *asked, outcome, _clip(err), 0.0, count))

    def on_peer_lost(self, peer: Peer) -> None:
        """Write the records of a client that nothing can be sent to any more."""
        self._reused_ids.discard(peer)
        for request_id in self.pending_ids(peer):
            self._record(peer, request_id, "client-disconnected", None)

    def record_own(self, op: str | None, agent: str | None, session: str | None, outcome: str, err: str | None) -> None:
        """Write the record of an action that no client asked for."""
        if self._enabled:
            self._add_effect(Audit(b"", BROKER, self._clock.now, "", op, agent, session, outcome, _clip(err), 0.0))

    def _record(self, peer: Peer, request_id: str, outcome: str, err: str | None) -> None:
        now, mine = self._clock.now, self._open.get(peer)
        begun = None
        if mine is not None:
            begun = mine.pop(request_id, None)
            if not mine:
                del self._open[peer]
        if not self._enabled:
            return
        if begun is None:
            begun = _OpenRequest(now, self._identity_of(peer), None, None, None)
        latency = round((now - begun.since) * 1000, 3)
        asked = (request_id[:_MAX_TEXT_CHARS], begun.op, begun.agent, begun.session)
        self._add_effect(
            Audit(peer, begun.identity, now, *asked, outcome, None if err is None else _clip(err), latency)
        )


def _clip(text: str | None) -> str | None:
    return None if text is None else text[:_MAX_TEXT_CHARS]
