"""A true sliding window: so many requests in any 60 seconds, refused ones included."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Window:
    """One connection's requests of the last minute. Holds at most `limit` times."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def admit(self, limit: int, now: float) -> int:
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

    def idle(self, now: float) -> bool:
        """Whether nothing was heard in the last minute."""
        return not self._times or self._times[-1] <= now - WINDOW_S
