"""Refusals of requests that are not looked at. They are answered one after the other with a pause before each, so that
a client that asks again at once is slowed down; of one that does not wait for them so many are kept, and no more."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replbroker.core.effects import Disconnect, PauseReading, Peer
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.limits import MAX_DELAYED_REFUSALS
from replwire.requests import extract_id

PAUSE_S = 0.1  # between two refusals of one connection


class _DelayedError(NamedTuple):
    """A request of which nothing else is kept."""

    request_id: str
    refusal: RequestError
    when: float


class DelayedErrors:
    """By connection, the oldest first."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: dict[Peer, deque[_DelayedError]] = {}

    def has_pending(self, peer: Peer) -> bool:
        """Whether this peer has one to come."""
        return peer in self._waiting

    def add(self, peer: Peer, body: bytes, refusal: RequestError, now: float) -> None:
        """Refuse this request after a pause. One too many that waits ends the connection."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            waiting = self._waiting[peer] = deque()
            self._answer_later(peer, now)
        self._state.effects.append(PauseReading(peer, now + PAUSE_S))
        refused = _DelayedError(extract_id(body), refusal, now)
        if len(waiting) >= MAX_DELAYED_REFUSALS:
            self._disconnect(peer, refused)
        else:
            waiting.append(refused)

    def _answer_later(self, peer: Peer, now: float) -> None:
        self._state.deadlines.call_at(now + PAUSE_S, lambda now: self._answer_next(peer, now))

    def _answer_next(self, peer: Peer, now: float) -> None:
        waiting = self._waiting.get(peer)
        if waiting is None:  # the client has gone
            return
        self._answer(peer, waiting.popleft(), now)
        if waiting:
            self._answer_later(peer, now)
        else:
            del self._waiting[peer]

    def _answer(self, peer: Peer, refused: _DelayedError, now: float) -> None:
        refusal = refused.refusal
        retry = refusal.fields.get("retry_after_ms")
        if retry is not None:
            refusal.fields["retry_after_ms"] = max(1, retry - int((now - refused.when) * 1000))
        self._state.reply_error(peer, refused.request_id, refusal)

    def _disconnect(self, peer: Peer, last: _DelayedError) -> None:
        """Answer the newest, in place of all, and end the connection."""
        self.drop(peer)
        why = "too many refused requests are waiting: the connection is closed"
        refusal = RequestError(last.refusal.code, f"{last.refusal.message}; {why}", **last.refusal.fields)
        self._state.reply_error(peer, last.request_id, refusal)
        self._state.effects.append(Disconnect(peer))

    def drop(self, peer: Peer) -> None:
        """Answer none of them: the client has gone, or is made to. They are counted all the same."""
        waiting = self._waiting.pop(peer, None)
        if waiting:
            last = waiting[-1]
            self._state.counts[f"refused.{last.refusal.code}"] += len(waiting)
            self._state.audit.record_unanswered(
                peer, last.request_id, last.refusal.code, last.refusal.message, len(waiting)
            )

    def answer_all(self, now: float) -> None:
        """Answer all of them at once: the broker ends."""
        for peer in list(self._waiting):
            for refused in self._waiting.pop(peer):
                self._answer(peer, refused, now)
