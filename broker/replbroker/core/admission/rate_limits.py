"""Rate limits: how much one client may ask. They come before a request is looked at."""

from __future__ import annotations

import math

from replbroker.core.effects import PauseReading, Peer
from replbroker.core.limits.sliding_window import ByteBucket, SlidingWindow
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS
from replwire.requests import parse

_UNCOUNTED_BYTES = 4096  # requests up to this size cost nothing worth counting
_MAX_CONTROL_BYTES = 1024  # of an `interrupt` or `close` that passes when other requests are too many
_NEGLIGIBLE_S = 1e-6


def check_rate(state: BrokerState, peer: Peer, body: bytes, now: float) -> None:
    """Count one more request.

    Args:
        state: The broker's state.
        peer: The connection.
        body: The request.
        now: Seconds, monotonic.

    Raises:
        RequestError: It comes too early. A request that ends something running passes, up to a limit of its own.
    """
    identity = state.access.identity_of(peer)
    # Connections of the broker's own user count apart; strangers too, else one could keep another from its `hello`.
    alone = identity == state.config.broker_user or identity == ANONYMOUS
    key, quota_of = (peer, None) if alone else (identity, identity)
    window = state.rate_windows.get(key)
    if window is None:
        window = state.rate_windows[key] = SlidingWindow()
    limit = state.limits.rate_limit_per_min
    if limit and (retry := window.try_acquire(limit, now)):
        if _is_control(body) and window.try_acquire_control(state.limits.control_rate_per_min, now):
            return
        raise state.limit_error(
            "rate-limited", "rate-limit-per-min", "Rate limit exceeded", retry_after_ms=retry, quota_of=quota_of
        )
    if len(body) > _UNCOUNTED_BYTES and (per_s := state.limits.max_request_bytes_per_s):
        _check_bytes(state, peer, window.bytes, len(body), per_s, now)


def _is_control(body: bytes) -> bool:
    """Return whether a request ends something that runs."""
    if len(body) > _MAX_CONTROL_BYTES or not any(op in body for op in (b'"interrupt"', b'"close"')):
        return False
    try:
        return parse(body)["op"] in ("interrupt", "close")
    except RequestError:
        return False


def _check_bytes(state: BrokerState, peer: Peer, sent: ByteBucket, size: int, per_s: int, now: float) -> None:
    """Count the bytes of a request. A connection that can be left unread never gets the error."""
    wait = sent.wait_s(per_s, now)
    if wait > _NEGLIGIBLE_S:
        retry = math.ceil(wait * 1000)
        state.effects.append(PauseReading(peer, now + wait))
        err = "Too many bytes of requests"
        raise state.limit_error("rate-limited", "max-request-bytes-per-s", err, retry_after_ms=retry)
    sent.add(size)
    if (wait := sent.wait_s(per_s, now)) > 0:
        state.effects.append(PauseReading(peer, now + wait))
