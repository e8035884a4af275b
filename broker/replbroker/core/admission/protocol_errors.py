"""Messages in a row that are no requests: they cost a pause, and in the end the connection."""

from __future__ import annotations

from replbroker.core.admission.delayed_errors import PAUSE_S
from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import CloseConnection, PauseReading, Peer
from replbroker.core.state import BrokerState

_MAX_PROTOCOL_ERRORS = 10
_UNPENALIZED_ERRORS = 4  # that cost no pause


def count_protocol_error(state: BrokerState, peer: Peer, word: str, now: float) -> None:
    """Count a refusal. What is no request, ten times in a row, or is too long to find the end of, ends a connection.
    Nobody gets there fast: to come again and again would cost others more than the ten."""
    strikes = state.protocol_errors
    if word == "malformed-request" or (word == "unauthorized" and state.access.identity_of(peer) == ANONYMOUS):
        strikes[peer] += 1
    else:
        strikes.pop(peer, None)
    if word == "message-too-large" or strikes[peer] >= _MAX_PROTOCOL_ERRORS:
        state.effects.append(CloseConnection(peer))
        strikes.pop(peer, None)
    elif strikes[peer] > _UNPENALIZED_ERRORS:
        state.effects.append(PauseReading(peer, now + PAUSE_S))
