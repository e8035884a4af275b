"""How much one client may ask: the rate limits, which come before a request is looked at."""

from __future__ import annotations

import math

from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import PauseReading, Peer
from replbroker.core.limits.sliding_window import ByteBucket, SlidingWindow
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.requests import parse

_UNCOUNTED_BYTES = 4096  # bytes of a request that costs nothing worth counting
_MAX_CONTROL_BYTES = 1024  # of an `interrupt` or `close` that gets through when other requests are too many
_NEGLIGIBLE_S = 1e-6


def check_rate(state: BrokerState, peer: Peer, body: bytes, now: float) -> None:
    """Count one more request. Raises Refusal; what ends something that runs gets through, with a bound of its own."""
    identity, size = state.access.identity_of(peer), len(body)
    alone = (
        state.access.is_broker_user(identity) or identity == ANONYMOUS
    )  # no stranger keeps another from saying who it is
    key, whose = (peer, None) if alone else (identity, identity)
    window = state.rate_windows.get(key)
    if window is None:
        window = state.rate_windows[key] = SlidingWindow()
    limit = state.limits.rate_limit_per_min
    if limit and (retry := window.try_acquire(limit, now)):
        if _is_control(body) and window.try_acquire_control(state.limits.control_rate_per_min, now):
            return
        raise state.limit_error(
            "rate-limited", "rate-limit-per-min", "Rate limit exceeded", retry_after_ms=retry, quota_of=whose
        )
    if size > _UNCOUNTED_BYTES and (per_s := state.limits.max_request_bytes_per_s):
        _check_bytes(state, peer, window.bytes, size, per_s, now)


def _is_control(body: bytes) -> bool:
    """Whether this ends something that runs: it is let through when other requests are too many."""
    if len(body) > _MAX_CONTROL_BYTES or not any(op in body for op in (b'"interrupt"', b'"close"')):
        return False
    try:
        return parse(body)["op"] in ("interrupt", "close")
    except RequestError:
        return False


def _check_bytes(state: BrokerState, peer: Peer, sent: ByteBucket, size: int, per_s: int, now: float) -> None:
    """A connection that can be left unread never meets the refusal."""
    owed = sent.wait_s(per_s, now)
    if owed > _NEGLIGIBLE_S:
        retry = math.ceil(owed * 1000)
        state.effects.append(PauseReading(peer, now + owed))
        raise state.limit_error(
            "rate-limited", "max-request-bytes-per-s", "Too many bytes of requests", retry_after_ms=retry
        )
    sent.add(size)
    if (owed := sent.wait_s(per_s, now)) > 0:
        state.effects.append(PauseReading(peer, now + owed))
