"""Messages dropped for clients that read too slowly, and the notices that report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from replwire.events import build_lagged, wrap_event
from replwire.replies import Reply, encode


class _OutputText(msgspec.Struct):
    out: str = ""
    err: str = ""


_decode = msgspec.json.Decoder(_OutputText).decode


class DroppedMessages:
    """Bytes of live output by request, and events by subscription."""

    __slots__ = ("_bytes", "_events")

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        self._events: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._bytes or self._events)

    def add(self, request_id: str, body: bytes | memoryview, *, event: bool) -> None:
        """Count a dropped message: an event, or the text of live output in bytes."""
        if event:
            self._events[request_id] += 1
        else:
            output = _decode(body)
            self._bytes[request_id] += len((output.out + output.err).encode())

    def take_notices(self) -> Iterator[bytes]:
        """Yield a notice for each request that misses something, and forget the counts."""
        output, events = self._bytes, self._events
        self._bytes, self._events = Counter(), Counter()
        for request_id, count in output.items():
            yield encode(Reply(id=request_id, status=["output-dropped"], dropped_bytes=count))
        for request_id, count in events.items():
            yield wrap_event(request_id, build_lagged(count))
