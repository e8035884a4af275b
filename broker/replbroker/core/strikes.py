"""Messages in a row that are no requests: they cost a pause, and in the end the connection."""

from __future__ import annotations

from replbroker.core.access import ANYBODY
from replbroker.core.delayed_refusals import PAUSE_S
from replbroker.core.effects import HangUp, Pause, Peer
from replbroker.core.state import State

_MOST = 10
_FREE = 4  # that cost no pause


def strike(state: State, peer: Peer, word: str, now: float) -> None:
    """Count a refusal. What is no request, ten times in a row, or is too long to find the end of, ends a connection.
    Nobody gets there fast: to come again and again would cost others more than the ten."""
    strikes = state.strikes
    if word == "malformed-request" or (word == "unauthorized" and state.access.of(peer) == ANYBODY):
        strikes[peer] += 1
    else:
        strikes.pop(peer, None)
    if word == "message-too-large" or strikes[peer] >= _MOST:
        state.out.append(HangUp(peer))
        strikes.pop(peer, None)
    elif strikes[peer] > _FREE:
        state.out.append(Pause(peer, now + PAUSE_S))
