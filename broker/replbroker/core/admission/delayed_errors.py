"""Delayed errors, for requests that come too often: sent one by one after pauses, to slow an eager client down.

For a client that does not wait for them a bounded number is kept.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replbroker.core.effects import Disconnect, PauseReading, Peer
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.limits import MAX_DELAYED_REFUSALS
from replwire.requests import extract_id

PAUSE_S = 0.1  # between two errors of one connection


class _DelayedError(NamedTuple):
    """The error for one request."""

    request_id: str
    error: RequestError
    when: float


class DelayedErrors:
    """The waiting errors of each connection, the oldest first."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: dict[Peer, deque[_DelayedError]] = {}

    def has_pending(self, peer: Peer) -> bool:
        """Return whether an error for this peer waits."""
        return peer in self._waiting

    def add(self, peer: Peer, body: bytes, error: RequestError, now: float) -> None:
        """Send an error after a pause. One too many ends the connection.

        Args:
            peer: The connection.
            body: The request, for its id.
            error: The error.
            now: Seconds, monotonic.
        """
        waiting = self._waiting.get(peer)
        if waiting is None:
            waiting = self._waiting[peer] = deque()
            self._answer_later(peer, now)
        self._state.effects.append(PauseReading(peer, now + PAUSE_S))
        delayed = _DelayedError(extract_id(body), error, now)
        if len(waiting) >= MAX_DELAYED_REFUSALS:
            self._disconnect(peer, delayed)
        else:
            waiting.append(delayed)

    def _answer_later(self, peer: Peer, now: float) -> None:
        self._state.deadlines.call_at(now + PAUSE_S, lambda now: self._answer_next(peer, now))

    def _answer_next(self, peer: Peer, now: float) -> None:
        waiting = self._waiting.get(peer)
        if waiting is None:  # the client has left
            return
        self._answer(peer, waiting.popleft(), now)
        if waiting:
            self._answer_later(peer, now)
        else:
            del self._waiting[peer]

    def _answer(self, peer: Peer, delayed: _DelayedError, now: float) -> None:
        error = delayed.error
        retry = error.fields.get("retry_after_ms")
        if retry is not None:
            error.fields["retry_after_ms"] = max(1, retry - int((now - delayed.when) * 1000))
        self._state.reply_error(peer, delayed.request_id, error)

    def _disconnect(self, peer: Peer, last: _DelayedError) -> None:
        """Answer the newest request, in place of all, and end the connection."""
        self.drop(peer)
        why = "too many refused requests are waiting: the connection is closed"
        error = RequestError(last.error.code, f"{last.error.message}; {why}", **last.error.fields)
        self._state.reply_error(peer, last.request_id, error)
        self._state.effects.append(Disconnect(peer))

    def drop(self, peer: Peer) -> None:
        """Drop the errors of a client that has left, or has to. They are counted and audited all the same."""
        waiting = self._waiting.pop(peer, None)
        if waiting:
            last = waiting[-1]
            code, message = last.error.code, last.error.message
            self._state.counts[f"refused.{code}"] += len(waiting)
            self._state.audit.record_unanswered(peer, last.request_id, code, message, len(waiting))

    def answer_all(self, now: float) -> None:
        """Send all errors at once: the broker ends."""
        for peer in list(self._waiting):
            for delayed in self._waiting.pop(peer):
                self._answer(peer, delayed, now)
