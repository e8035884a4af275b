"""File descriptor budget: the number of sessions and connections a descriptor limit allows."""

from __future__ import annotations

import msgspec

from replwire.limits import Limits

PER_SESSION = 6  # of a worker: process, pipes, link, transcript
OWN = 64  # the broker's own sockets, logs and the like
STARTING = 8  # workers starting in addition to those of sessions
_SPARE = 2  # descriptors per connection: its own, and one for a connection about to be refused
_FEWEST = 10  # connections reserved for bursts


def descriptors_needed(limits: Limits, warm_workers: int) -> int:
    """Return the number of descriptors needed for all sessions and connections the limits allow."""
    workers = limits.max_sessions + warm_workers + STARTING
    return OWN + workers * PER_SESSION + (limits.max_connections + _FEWEST) * _SPARE


def clamp_limits(limits: Limits, warm_workers: int, descriptors: int) -> Limits:
    """Return the limits, with fewer connections and sessions if there are too few descriptors."""
    if descriptors_needed(limits, warm_workers) <= descriptors:
        return limits
    left = max(0, descriptors - OWN - (warm_workers + STARTING) * PER_SESSION - _FEWEST * _SPARE)
    connections = max(1, min(limits.max_connections, left // 2 // _SPARE))
    sessions = max(0, min(limits.max_sessions, (left - connections * _SPARE) // PER_SESSION))
    return msgspec.structs.replace(limits, max_connections=connections, max_sessions=sessions)


def connection_capacity(limits: Limits, warm_workers: int, descriptors: int) -> int:
    """Return the number of connections that may be open at once, including those about to be refused.

    Half of what the sessions leave: more connections may arrive before the broker sees them.
    """
    workers = (limits.max_sessions + warm_workers + STARTING) * PER_SESSION
    return max(limits.max_connections, (descriptors - OWN - workers) // 2)
