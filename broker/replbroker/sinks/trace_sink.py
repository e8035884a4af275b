"""Sends traces to a collector: OTLP over HTTP, with OpenTelemetry's SDK and exporter, in a thread of its own.

Their batch processor is not used: it drops silently, and its shutdown has no deadline that holds.
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
from replbroker.sinks.span_builder import SpanBuilder

_BATCH_DELAY_S = 0.5  # how long an event may wait to be handed over
_EXPORT_TIMEOUT_S = 4.0  # for one export, with its retries
_CLOSE_TIMEOUT_S = 2.0  # for the last ones
_MAX_SPANS = 512  # in one export
_PATH = "/v1/traces"
_LIBRARIES = ("opentelemetry", "urllib3")
_log = logging.getLogger(__name__)


class _LastLogMessages(logging.Handler):
    """The last messages of the libraries' loggers, which are the only place that says why an export failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: deque[str] = deque(maxlen=2)  # the error, and that the exporter gave up

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._messages.append(record.getMessage()[:500])

    def take(self) -> str:
        """Return the messages since the last call."""
        messages = "; ".join(self._messages)
        self._messages.clear()
        return messages or "no reason was given"


class _FinishedSpans(SpanProcessor):
    """Spans that are complete, until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Add a span."""
        self.spans.append(span)


class TraceSink:
    """Event sink that exports spans.

    Args:
        builder: Builds spans, which end up in `finished`.
        finished: The finished spans.
        exporter: Sends spans to the collector.
        monotonic_to_unix: Returns the Unix time of monotonic zero.
        log_messages: What the libraries log.

    Attributes:
        exported_spans: Spans that the collector has taken.
    """

    def __init__(
        self,
        builder: SpanBuilder,
        finished: _FinishedSpans,
        exporter: SpanExporter,
        monotonic_to_unix: Callable[[], float],
        log_messages: _LastLogMessages,
    ) -> None:
        self._builder = builder
        self._finished_spans = finished
        self._exporter = exporter
        self._monotonic_to_unix = monotonic_to_unix
        self._log_messages = log_messages
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
        """Monotonic time at which `flush` should be called."""
        return self._writer.due

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Take an event that spans are built from."""
        if event.type in self._builder.event_types:
            self._last_event_at = event.when
            self._writer.put(event, now)

    def flush(self, now: float) -> None:
        """Hand over the batch, if it is time, and log the thread's errors."""
        if not self._writer.flush(now):
            return
        if self._last_error is not None and not self._is_error_logged:
            _log.warning("traces do not arrive: %s", self._last_error)
        self._is_error_logged = self._last_error is not None

    def snapshot(self) -> dict[str, Any]:
        """Return counters for `introspect`."""
        return {
            "exported": self.exported_spans,
            "lost-events": self._writer.lost_events + self._unreadable_events + self._builder.evicted_count,
            "lost-spans": self._unsent_spans,
            "pending-bytes": self._writer.pending_bytes,
            "last-error": self._last_error,
        }

    def close(self) -> None:
        """Send what waits, within the time-out."""
        if not self._writer.close():
            _log.warning("traces: %d bytes of events were not sent in time, and are lost", self._writer.pending_bytes)
        self._exporter.shutdown()

    # --- the thread ---

    def _process_batch(self, batch: Batch) -> None:
        offset = self._monotonic_to_unix()
        for event in batch:
            try:
                self._builder.handle_event(event.body, int((offset + event.when) * 1e9))
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:  # a defect; the next may work
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
        self._builder.finish(int((self._monotonic_to_unix() + self._last_event_at) * 1e9))
        self._export()


def create_trace_sink(
    url: str, include_code: bool, boot_id: str, version: str, monotonic_to_unix: Callable[[], float]
) -> TraceSink:
    """Create a sink that sends traces to a collector.

    Args:
        url: The collector's base URL.
        include_code: Whether spans have the code of evals.
        boot_id: Id of this run of the broker.
        version: Version of replctl.
        monotonic_to_unix: Returns the Unix time of monotonic zero.

    Raises:
        ValueError: The URL cannot be used.
    """
    log_messages = _LastLogMessages()
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.addHandler(log_messages)
        logger.propagate = False
    resource = Resource.create(
        {
            "service.name": "replctl",
            "service.version": version,
            "service.instance.id": boot_id,
            "process.pid": os.getpid(),
            "host.name": os.uname().nodename,
        }
    )
    provider, finished = TracerProvider(resource=resource, shutdown_on_exit=False), _FinishedSpans()
    provider.add_span_processor(finished)
    builder = SpanBuilder(provider.get_tracer("replctl", version), include_code)
    exporter = OTLPSpanExporter(traces_url(url), timeout=_EXPORT_TIMEOUT_S)
    return TraceSink(builder, finished, exporter, monotonic_to_unix, log_messages)


def traces_url(url: str) -> str:
    """Return where a collector with this base URL takes traces.

    Raises:
        ValueError: The URL cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url}: http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a password: put it into the environment variable OTEL_EXPORTER_OTLP_HEADERS")
    base = url.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH
