"""Protocol errors: malformed messages in a row cost a pause, and in the end the connection."""

from __future__ import annotations

from replbroker.core.admission.delayed_errors import PAUSE_S
from replbroker.core.effects import CloseConnection, PauseReading, Peer
from replbroker.core.state import BrokerState
from replwire.identities import ANONYMOUS

_MAX_PROTOCOL_ERRORS = 10
_UNPENALIZED_ERRORS = 4  # cost no pause


def count_protocol_error(state: BrokerState, peer: Peer, code: str, now: float) -> None:
    """Count an error. Too many malformed messages in a row, or one too long to find its end, end a connection.

    Args:
        state: The broker's state.
        peer: The connection.
        code: The code of the error.
        now: Seconds, monotonic.
    """
    errors = state.protocol_errors
    if code == "malformed-request" or (code == "unauthorized" and state.access.identity_of(peer) == ANONYMOUS):
        errors[peer] += 1
    else:
        errors.pop(peer, None)
    if code == "message-too-large" or errors[peer] >= _MAX_PROTOCOL_ERRORS:
        state.effects.append(CloseConnection(peer))
        errors.pop(peer, None)
    elif errors[peer] > _UNPENALIZED_ERRORS:
        state.effects.append(PauseReading(peer, now + PAUSE_S))
