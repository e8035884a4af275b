"""Numbers formatted for narrow columns, and metrics measured over time. No I/O."""

from __future__ import annotations

from collections import deque

_DAY = 86_400


def format_span(seconds: float) -> str:
    """Format a duration: `350ms`, `1.4s`, `12s`, `3m20s`, `2h05m`, `3d04h`."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < _DAY:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // _DAY}d{whole % _DAY // 3600:02}h"


def format_bytes(count: float) -> str:
    """Format bytes: `0`, `812`, `9.5K`, `104M`, `1.2G`."""
    for unit in ("", "K", "M", "G"):
        if count < 1000:
            return f"{count:.0f}{unit}" if not unit or count >= 9.95 else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}T"


def format_number(value: float) -> str:
    """Format a rate or a number of seconds with two significant digits."""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


class Rate:
    """Growth rate of a counter over the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._samples: deque[tuple[float, float]] = deque(maxlen=200)

    def record(self, now: float, total: float) -> None:
        """Record the counter. A counter that fell has been restarted."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, total))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()

    def per_second(self) -> float:
        """Return the rate per second; 0.0 with too few samples."""
        if len(self._samples) < 2:
            return 0.0
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - begin) if end > begin else 0.0


class SessionUsage:
    """Processor time and memory of one session's interpreter.

    The share is measured between the worker's own reports. A heartbeat is up to 20 s old when it is seen: between one
    and a report that follows at once lies far more processor time than time.
    """

    MIN_SPAN_SECONDS = 0.5  # between the two reports of a share; the kernel counts in 10 ms

    def __init__(self) -> None:
        self.cpu_seconds: float | None = None
        self.memory_bytes: int | None = None
        self.percent: float | None = None  # of one processor
        self._base: tuple[float, float] | None = None  # time and processor time of the report that the share begins at
        self._is_at_rest = False  # nothing has run since the last report

    def update(self, now: float, cpu: float | None, memory: int | None, *, at_rest: bool = False) -> None:
        """Record the worker's report.

        Args:
            now: Seconds, by a monotonic clock.
            cpu: Processor time in seconds, or None if unknown.
            memory: Bytes, or None if unknown.
            at_rest: Nothing runs in the session.
        """
        if memory:
            self.memory_bytes = memory
        if cpu is None:
            return
        self.cpu_seconds, self._is_at_rest = cpu, at_rest
        began, before = self._base or (now, cpu)
        if self._base is None or cpu < before:  # the first report, or another interpreter's
            self._base = now, cpu
        elif now - began >= self.MIN_SPAN_SECONDS:
            self.percent = 100 * (cpu - before) / (now - began)
            self._base = now, cpu

    def update_from_heartbeat(self, cpu: float, memory: int) -> None:
        """Record a heartbeat's metrics, which may be older than those known."""
        if self.cpu_seconds is None or cpu > self.cpu_seconds:
            self.cpu_seconds = cpu
            self.memory_bytes = memory or self.memory_bytes
        elif memory and (
            self.memory_bytes is None or cpu == self.cpu_seconds
        ):  # idle: do not keep the figure of the first
            self.memory_bytes = memory  # heartbeat, sent during startup

    def on_started(self, now: float) -> None:
        """Let the share begin here: the session rested, and has used no processor time since its last report."""
        if self._base is not None and self._is_at_rest:
            self._base, self._is_at_rest = (now, self._base[1]), False

    def set_idle(self) -> None:
        """Set the processor usage to zero."""
        self.percent = 0.0 if self.cpu_seconds is not None else None

    def reset(self) -> None:
        """Forget all metrics, for a new worker."""
        self.cpu_seconds = self.memory_bytes = self.percent = self._base = None
        self._is_at_rest = False
