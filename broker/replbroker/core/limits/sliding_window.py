"""How much may be asked: requests in any 60 seconds, a true sliding window with refused ones in it; and bytes."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class ByteBucket:
    """Bytes of requests: a second's worth at once, then so many a second. One request may go into debt, however long it
    is; the next waits until that is paid."""

    __slots__ = ("_at", "_used")

    def __init__(self) -> None:
        self._used = 0.0  # beyond 0 and up to a second's worth it is free, beyond that debt
        self._at = 0.0

    def wait_s(self, per_s: int, now: float) -> float:
        """In how many seconds the next may come."""
        self._used = max(0.0, self._used - (now - self._at) * per_s)
        self._at = now
        return max(0.0, (self._used - per_s) / per_s)

    def add(self, size: int) -> None:
        """One has come."""
        self._used += size


class SlidingWindow:
    """Somebody's requests of the last minute. Holds at most `limit` times."""

    __slots__ = ("_controls", "_times", "bytes")

    def __init__(self) -> None:
        self.bytes = ByteBucket()
        self._times: deque[float] = deque()
        self._controls: deque[float] = deque()

    def try_acquire(self, limit: int, now: float) -> int:
        """0 when the request may pass, else in how many milliseconds (at least 1) the next one may.

        A refused request counts: it takes the place of the oldest one, so hammering does not pay.
        """
        times = self._times
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        if len(times) < limit:
            times.append(now)
            return 0
        times.popleft()
        times.append(now)
        return max(1, int((times[0] + WINDOW_S - now) * 1000) + 1)

    def try_acquire_control(self, limit: int, now: float) -> bool:
        """Whether one that has met its limit may still interrupt or close what it began. Refused ones do not count."""
        times = self._controls
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        if len(times) >= limit:
            return False
        times.append(now)
        return True

    def is_idle(self, now: float) -> bool:
        """Whether nothing was heard in the last minute."""
        return not self._times or self._times[-1] <= now - WINDOW_S
