"""How many sessions and connections a number of file descriptors is enough for: the sum that a broker starts with."""

from __future__ import annotations

import msgspec

from replwire.limits import Limits

PER_SESSION = 6  # of a worker: its process, its pipes, its link, its transcript
OWN = 64  # sockets, logs and the like of the broker's own
STARTING = 8  # workers on their way beside those that sessions have
_SPARE = 2  # descriptors for each connection: its own, and room for those that come before one is refused
_FEWEST = 10  # connections, and a reserve for a burst of them


def descriptors_needed(limits: Limits, warm_workers: int) -> int:
    """Descriptors for as many sessions and connections as the limits allow."""
    workers = limits.max_sessions + warm_workers + STARTING
    return OWN + workers * PER_SESSION + (limits.max_connections + _FEWEST) * _SPARE


def clamp_limits(limits: Limits, warm_workers: int, descriptors: int) -> Limits:
    """The limits, with fewer connections and sessions where there are not descriptors enough for them."""
    if descriptors_needed(limits, warm_workers) <= descriptors:
        return limits
    left = max(0, descriptors - OWN - (warm_workers + STARTING) * PER_SESSION - _FEWEST * _SPARE)
    connections = max(1, min(limits.max_connections, left // 2 // _SPARE))
    sessions = max(0, min(limits.max_sessions, (left - connections * _SPARE) // PER_SESSION))
    return msgspec.structs.replace(limits, max_connections=connections, max_sessions=sessions)


def connection_capacity(limits: Limits, warm_workers: int, descriptors: int) -> int:
    """Connections that may be open at once, those included that are about to be refused: half of what the sessions
    leave, for more may come before the broker sees them."""
    workers = (limits.max_sessions + warm_workers + STARTING) * PER_SESSION
    return max(limits.max_connections, (descriptors - OWN - workers) // 2)
