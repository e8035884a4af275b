"""Refusals of requests that are not looked at. They are answered one after the other with a pause before each, so that
a client that asks again at once is slowed down; of one that does not wait for them so many are kept, and no more."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replbroker.core.effects import Disconnect, Pause, Peer
from replbroker.core.state import State
from replwire.faults import Refusal
from replwire.limits import MAX_DELAYED_REFUSALS
from replwire.requests import id_of

PAUSE_S = 0.1  # between two refusals of one connection


class _Refused(NamedTuple):
    """A request of which nothing else is kept."""

    request_id: str
    refusal: Refusal
    when: float


class DelayedRefusals:
    """By connection, the oldest first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: dict[Peer, deque[_Refused]] = {}

    def awaits(self, peer: Peer) -> bool:
        """Whether this peer has one to come."""
        return peer in self._waiting

    def add(self, peer: Peer, body: bytes, refusal: Refusal, now: float) -> None:
        """Refuse this request after a pause. One too many that waits ends the connection."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            waiting = self._waiting[peer] = deque()
            self._answer_later(peer, now)
        self._state.out.append(Pause(peer, now + PAUSE_S))
        refused = _Refused(id_of(body), refusal, now)
        if len(waiting) >= MAX_DELAYED_REFUSALS:
            self._disconnect(peer, refused)
        else:
            waiting.append(refused)

    def _answer_later(self, peer: Peer, now: float) -> None:
        self._state.deadlines.at(now + PAUSE_S, lambda now: self._answer_next(peer, now))

    def _answer_next(self, peer: Peer, now: float) -> None:
        waiting = self._waiting.get(peer)
        if waiting is None:  # the client has gone
            return
        self._answer(peer, waiting.popleft(), now)
        if waiting:
            self._answer_later(peer, now)
        else:
            del self._waiting[peer]

    def _answer(self, peer: Peer, refused: _Refused, now: float) -> None:
        refusal = refused.refusal
        retry = refusal.more.get("retry_after_ms")
        if retry is not None:
            refusal.more["retry_after_ms"] = max(1, retry - int((now - refused.when) * 1000))
        self._state.refuse(peer, refused.request_id, refusal)

    def _disconnect(self, peer: Peer, last: _Refused) -> None:
        """Answer the newest, in place of all, and end the connection."""
        self.forget(peer)
        why = "too many refused requests are waiting: the connection is closed"
        refusal = Refusal(last.refusal.word, f"{last.refusal.err}; {why}", **last.refusal.more)
        self._state.refuse(peer, last.request_id, refusal)
        self._state.out.append(Disconnect(peer))

    def forget(self, peer: Peer) -> None:
        """Answer none of them: the client has gone, or is made to. They are counted all the same."""
        waiting = self._waiting.pop(peer, None)
        if waiting:
            last = waiting[-1]
            self._state.counts[f"refused.{last.refusal.word}"] += len(waiting)
            self._state.trail.unanswered(peer, last.request_id, last.refusal.word, last.refusal.err, len(waiting))

    def answer_all(self, now: float) -> None:
        """Answer all of them at once: the broker ends."""
        for peer in list(self._waiting):
            for refused in self._waiting.pop(peer):
                self._answer(peer, refused, now)
