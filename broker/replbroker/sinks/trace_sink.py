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

from replbroker.core.effects import PublishEvent
from replbroker.sinks.background_writer import BackgroundWriter, Batch
from replbroker.sinks.event_sink import Register, Unregister
from replbroker.sinks.span_builder import SpanBuilder

_BATCH_DELAY_S = 0.5  # how long an event may wait to be handed over
_EXPORT_TIMEOUT_S = 4.0  # for one export, with what it repeats
_CLOSE_TIMEOUT_S = 2.0  # for the last ones
_MAX_SPANS = 512  # in one export
_PATH = "/v1/traces"
_LIBRARIES = ("opentelemetry", "urllib3")


class _LastLogMessages(logging.Handler):
    """Keeps the last things that the libraries had to say: why an export failed they tell a log, and nobody else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: deque[str] = deque(maxlen=2)  # what went wrong, and that they gave up

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self._messages.append(record.getMessage()[:500])

    def take(self) -> str:
        """What was said since the last time."""
        said = "; ".join(self._messages)
        self._messages.clear()
        return said or "no reason was given"


class _FinishedSpans(SpanProcessor):
    """Spans that are complete, until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.spans.append(span)


class TraceSink:
    """A watcher. `wall` is the Unix time of monotonic zero; `complain` takes one line for the log, in the loop."""

    def __init__(
        self,
        provider: TracerProvider,
        exporter: SpanExporter,
        version: str,
        include_code: bool,
        monotonic_to_unix: Callable[[], float],
        log_messages: _LastLogMessages,
        warn: Callable[[str], None],
    ) -> None:
        self._finished_spans = _FinishedSpans()
        provider.add_span_processor(self._finished_spans)
        self._spans = SpanBuilder(provider.get_tracer("replctl", version), include_code)
        self._exporter = exporter
        self._monotonic_to_unix = monotonic_to_unix
        self._log_messages = log_messages
        self._warn = warn
        self._writer = BackgroundWriter(
            "traces", self._process_batch, self._finish, delay_s=_BATCH_DELAY_S, close_timeout_s=_CLOSE_TIMEOUT_S
        )
        self._unreadable_events = 0
        self._unsent_spans = 0
        self._last_error: str | None = None
        self._is_error_logged = False
        self._last_event_at = 0.0
        self.exported_spans = 0

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._writer.due

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Nothing to poll."""

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Take one in."""
        if event.type in self._spans.event_types:
            self._last_event_at = event.when
            self._writer.put(event, now)

    def flush(self, now: float) -> None:
        """Hand over what has come, if it is time; pass on what the thread has to complain about."""
        if not self._writer.flush(now):
            return
        if self._last_error is not None and not self._is_error_logged:
            self._warn(f"traces do not arrive: {self._last_error}")
        self._is_error_logged = self._last_error is not None

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {
            "exported": self.exported_spans,
            "lost-events": self._writer.lost_events + self._unreadable_events + self._spans.evicted_count,
            "lost-spans": self._unsent_spans,
            "pending-bytes": self._writer.pending_bytes,
            "trouble": self._last_error,
        }

    def close(self) -> None:
        """Send what waits, at most so long."""
        if not self._writer.close():
            self._warn(f"traces: {self._writer.pending_bytes} bytes of events were not sent in time, and are lost")
        self._exporter.shutdown()

    # --- the thread ---

    def _process_batch(self, bundle: Batch) -> None:
        zero = self._monotonic_to_unix()
        for event in bundle:
            try:
                self._spans.handle_event(event.body, int((zero + event.when) * 1e9))
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:  # a defect; the next may go well
                self._unreadable_events += 1
                self._last_error = f"{event.type}: {type(error).__name__}: {error}"
            if len(self._finished_spans.spans) >= _MAX_SPANS:
                self._export()
        self._export()

    def _export(self) -> None:
        spans, self._finished_spans.spans = self._finished_spans.spans, []
        if not spans:
            return
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            self.exported_spans += len(spans)
            self._last_error = None
        else:
            self._unsent_spans += len(spans)
            self._last_error = self._log_messages.take()

    def _finish(self) -> None:
        self._spans.finish(int((self._monotonic_to_unix() + self._last_event_at) * 1e9))
        self._export()


def create_trace_sink(
    url: str,
    include_code: bool,
    boot: str,
    version: str,
    monotonic_to_unix: Callable[[], float],
    warn: Callable[[str], None],
) -> TraceSink:
    """The watcher that sends to the collector at this URL. Raises ValueError for one that is none."""
    words = _LastLogMessages()
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
    return TraceSink(
        provider,
        OTLPSpanExporter(traces_url(url), timeout=_EXPORT_TIMEOUT_S),
        version,
        include_code,
        monotonic_to_unix,
        words,
        warn,
    )


def traces_url(url: str) -> str:
    """Where traces go at a collector's base URL. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url}: http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a password: put it into the environment variable OTEL_EXPORTER_OTLP_HEADERS")
    base = url.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH
