"""A minimal trace collector: OTLP over HTTP on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpCollector:
    """Collector of requests; it responds once `go` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.resource: dict[str, Any] = {}
        self.accepting = threading.Event()
        self.accepting.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.accepting.wait(30)
                collector.bodies.append(body)
                collector.paths.add(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                try:
                    self.end_headers()
                except BrokenPipeError:  # the broker no longer waits
                    pass

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.accepting.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """Return all spans, the oldest first."""
        found = []
        for body in tuple(self.bodies):
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = _plain(group.resource.attributes)
                found += [ReceivedSpan(span) for scope in group.scope_spans for span in scope.spans]
        return found

    def spans_named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of one name."""
        return [span for span in self.spans if span.name == name]


class ReceivedSpan:
    """One span, as plain data. Times are in nanoseconds."""

    def __init__(self, sent: Any) -> None:
        self.name: str = sent.name
        self.trace, self.id, self.parent = sent.trace_id.hex(), sent.span_id.hex(), sent.parent_span_id.hex()
        self.begin, self.end = sent.start_time_unix_nano, sent.end_time_unix_nano
        self.attributes = _plain(sent.attributes)
        self.failed: bool = sent.status.code == sent.status.STATUS_CODE_ERROR
        self.why: str = sent.status.message
        self.events = [(event.name, _plain(event.attributes)) for event in sent.events]
        self.links = [link.span_id.hex() for link in sent.links]


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collector() -> Iterator[OtlpCollector]:
    """A running collector."""
    running = OtlpCollector()
    try:
        yield running
    finally:
        running.close()
