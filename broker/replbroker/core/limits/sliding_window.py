"""Rates: requests in any 60 seconds, a true sliding window that counts refused ones too, and bytes of requests."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class ByteBucket:
    """A bucket of bytes: a second's worth at once, then so many a second.

    One request may go into debt, however long it is; the next waits until that is paid.
    """

    __slots__ = ("_at", "_used")

    def __init__(self) -> None:
        self._used = 0.0  # up to a second's worth is free, more is debt
        self._at = 0.0

    def wait_s(self, per_s: int, now: float) -> float:
        """Return the seconds until the next request may come, at so many bytes a second."""
        self._used = max(0.0, self._used - (now - self._at) * per_s)
        self._at = now
        return max(0.0, (self._used - per_s) / per_s)

    def add(self, size: int) -> None:
        """Count the bytes of a request."""
        self._used += size


class SlidingWindow:
    """The requests of one account in the last minute. Holds at most `limit` times."""

    __slots__ = ("_controls", "_times", "bytes")

    def __init__(self) -> None:
        self.bytes = ByteBucket()
        self._times: deque[float] = deque()
        self._controls: deque[float] = deque()

    def try_acquire(self, limit: int, now: float) -> int:
        """Count one more request. A refused one takes the place of the oldest, so hammering does not pay.

        Args:
            limit: Requests in any minute.
            now: Seconds, monotonic.

        Returns:
            0 if the request may pass, else the milliseconds (at least 1) until the next one may.
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
        """Count one more `interrupt` or `close` beyond the limit. Return whether it may pass; refused ones are free."""
        times = self._controls
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        if len(times) >= limit:
            return False
        times.append(now)
        return True

    def is_idle(self, now: float) -> bool:
        """Return whether there was no request in the last minute."""
        return not self._times or self._times[-1] <= now - WINDOW_S
