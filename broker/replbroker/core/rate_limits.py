"""How much one client may ask: the rate limits, which come before a request is looked at."""

from __future__ import annotations

import math

from replbroker.core.access import ANYBODY
from replbroker.core.effects import Pause, Peer
from replbroker.core.rate import Bucket, Window
from replbroker.core.state import State
from replwire.faults import Refusal
from replwire.requests import parse

_SMALL = 4096  # bytes of a request that costs nothing worth counting
_MOST_CONTROL = 1024  # of an `interrupt` or `close` that gets through when other requests are too many
_NOTHING_S = 1e-6


def check_rate(state: State, peer: Peer, body: bytes, now: float) -> None:
    """Count one more request. Raises Refusal; what ends something that runs gets through, with a bound of its own."""
    identity, size = state.access.of(peer), len(body)
    alone = state.access.is_own(identity) or identity == ANYBODY  # no stranger keeps another from saying who it is
    key, whose = (peer, None) if alone else (identity, identity)
    window = state.windows.get(key)
    if window is None:
        window = state.windows[key] = Window()
    limit = state.limits.rate_limit_per_min
    if limit and (retry := window.admit(limit, now)):
        if _is_control(body) and window.admit_control(state.limits.control_rate_per_min, now):
            return
        raise state.full(
            "rate-limited", "rate-limit-per-min", "Rate limit exceeded", retry_after_ms=retry, quota_of=whose
        )
    if size > _SMALL and (per_s := state.limits.max_request_bytes_per_s):
        _weigh(state, peer, window.bytes, size, per_s, now)


def _is_control(body: bytes) -> bool:
    """Whether this ends something that runs: it is let through when other requests are too many."""
    if len(body) > _MOST_CONTROL or not any(op in body for op in (b'"interrupt"', b'"close"')):
        return False
    try:
        return parse(body)["op"] in ("interrupt", "close")
    except Refusal:
        return False


def _weigh(state: State, peer: Peer, sent: Bucket, size: int, per_s: int, now: float) -> None:
    """A connection that can be left unread never meets the refusal."""
    owed = sent.owed_s(per_s, now)
    if owed > _NOTHING_S:
        retry = math.ceil(owed * 1000)
        state.out.append(Pause(peer, now + owed))
        raise state.full("rate-limited", "max-request-bytes-per-s", "Too many bytes of requests", retry_after_ms=retry)
    sent.take(size)
    if (owed := sent.owed_s(per_s, now)) > 0:
        state.out.append(Pause(peer, now + owed))
