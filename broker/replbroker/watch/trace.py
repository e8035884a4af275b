"""Sends traces to a collector: OTLP over HTTP, by OpenTelemetry's own SDK and exporter, in a thread of its own.

Their batch processor is not used: it drops in silence, and its end has no deadline that holds.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from replbroker.core.effects import Happened
from replbroker.watch.base import Drop, Register
from replbroker.watch.behind import Behind, Bundle
from replbroker.watch.spans import Spans

_PAUSE_S = 0.5  # how long an event may wait to be handed over
_PATIENCE_S = 4.0  # for one export, with what it repeats
_CLOSE_S = 2.0  # for the last ones
_MOST_SPANS = 512  # in one export
_PATH = "/v1/traces"
_LIBRARIES = ("opentelemetry", "urllib3")


class _Words(logging.Handler):
    """Keeps the last things that the libraries had to say: why an export failed they tell a log, and nobody else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: deque[str] = deque(maxlen=2)  # what went wrong, and that they gave up

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self._said.append(record.getMessage()[:500])

    def take(self) -> str:
        """What was said since the last time."""
        said = "; ".join(self._said)
        self._said.clear()
        return said or "no reason was given"


class _Ended(SpanProcessor):
    """Spans that are complete, until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.spans.append(span)


class Trace:
    """A watcher. `wall` is the Unix time of monotonic zero; `complain` takes one line for the log, in the loop."""

    def __init__(
        self,
        provider: TracerProvider,
        exporter: SpanExporter,
        version: str,
        code: bool,
        wall: Callable[[], float],
        words: _Words,
        complain: Callable[[str], None],
    ) -> None:
        self._ended = _Ended()
        provider.add_span_processor(self._ended)
        self._spans = Spans(provider.get_tracer("replctl", version), code)
        self._exporter = exporter
        self._wall = wall
        self._words = words
        self._complain = complain
        self._behind = Behind("traces", self._work, self._end, pause_s=_PAUSE_S, patience_s=_CLOSE_S)
        self._unread = 0
        self._unsent = 0
        self._trouble: str | None = None
        self._told = False
        self._last = 0.0
        self.exported = 0

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._behind.due

    def watch(self, register: Register, drop: Drop) -> None:
        """Nothing to poll."""

    def happened(self, event: Happened, now: float) -> None:
        """Take one in."""
        if event.type in self._spans.wanted:
            self._last = event.when
            self._behind.take(event, now)

    def flush(self, now: float) -> None:
        """Hand over what has come, if it is time; pass on what the thread has to complain about."""
        if not self._behind.flush(now):
            return
        if self._trouble is not None and not self._told:
            self._complain(f"traces do not arrive: {self._trouble}")
        self._told = self._trouble is not None

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {
            "exported": self.exported,
            "lost-events": self._behind.lost + self._unread + self._spans.forgotten,
            "lost-spans": self._unsent,
            "pending-bytes": self._behind.pending,
            "trouble": self._trouble,
        }

    def close(self) -> None:
        """Send what waits, at most so long."""
        if not self._behind.close():
            self._complain(f"traces: {self._behind.pending} bytes of events were not sent in time, and are lost")
        self._exporter.shutdown()

    # --- the thread ---

    def _work(self, bundle: Bundle) -> None:
        zero = self._wall()
        for event in bundle:
            try:
                self._spans.take(event.body, int((zero + event.when) * 1e9))
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:  # a defect; the next may go well
                self._unread += 1
                self._trouble = f"{event.type}: {type(error).__name__}: {error}"
            if len(self._ended.spans) >= _MOST_SPANS:
                self._export()
        self._export()

    def _export(self) -> None:
        spans, self._ended.spans = self._ended.spans, []
        if not spans:
            return
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            self._trouble = None
        else:
            self._unsent += len(spans)
            self._trouble = self._words.take()

    def _end(self) -> None:
        self._spans.end(int((self._wall() + self._last) * 1e9))
        self._export()


def trace(
    url: str, code: bool, boot: str, version: str, wall: Callable[[], float], complain: Callable[[str], None]
) -> Trace:
    """The watcher that sends to the collector at this URL. Raises ValueError for one that is none."""
    words = _Words()
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.addHandler(words)
        logger.propagate = False
    resource = Resource.create(
        {
            "service.name": "replctl",
            "service.version": version,
            "service.instance.id": boot,
            "process.pid": os.getpid(),
            "host.name": os.uname().nodename,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    return Trace(provider, OTLPSpanExporter(endpoint(url), timeout=_PATIENCE_S), version, code, wall, words, complain)


def endpoint(url: str) -> str:
    """Where traces go at a collector's base URL. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url}: http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a password: put it into the environment variable OTEL_EXPORTER_OTLP_HEADERS")
    base = url.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH
