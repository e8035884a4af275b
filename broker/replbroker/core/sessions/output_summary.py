"""A bounded summary of an eval's output, for its `eval/finished` event.

The end of its text is kept, and other results that fit. Messages are stored as the worker encoded them, and decoded
once, at the end.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

_MAX_TYPE = 200  # bytes of the name of an exception's type
_MAX_MESSAGES = 2000  # a loop that prints and flushes makes one message a line


class _Chunk(msgspec.Struct):
    """The fields of a message that matter here."""

    out: str | None = None
    err: str | None = None
    status: list[str] | None = None
    mime: dict[str, Any] | None = None
    value: str | None = None
    ns: str | None = None
    truncated: bool = False


class _ExceptionInfo(msgspec.Struct):
    """An exception of the code."""

    type: str


class _Final(msgspec.Struct, rename="kebab"):
    """The final message of an eval."""

    err: str | None = None
    ex: _ExceptionInfo | None = None
    traceback: str | None = None
    cause: str | None = None
    state: str | None = None
    truncated: bool = False


_NO_FINAL = _Final()
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_final = msgspec.json.Decoder(_Final).decode


class OutputSummary:
    """Messages of one eval, the newest `max_bytes` of them.

    Attributes:
        messages: Messages of output so far.
        bytes: Their size.
        final: The final message, encoded by the worker, or set with `set_broker_final`.
        value: The message with the value, encoded by the worker.
    """

    __slots__ = ("_bodies", "_max_bytes", "_skipped", "_stored_bytes", "bytes", "final", "messages", "value")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bodies: deque[bytes] | None = None  # most evals have no output
        self._stored_bytes = 0
        self._skipped = False
        self.value = b""
        self.final: bytes | _Final = _NO_FINAL
        self.messages = 0
        self.bytes = 0

    def add(self, body: bytes, *, text: bool) -> None:
        """Add a message before the final one.

        Args:
            body: The encoded message.
            text: It is text, of which the end is worth keeping. A figure is kept whole or not at all.
        """
        self.messages += 1
        self.bytes += len(body)
        if not text and len(body) > self._max_bytes:
            self._skipped = True
            return
        if self._bodies is None:
            self._bodies = deque()
        self._bodies.append(body)
        self._stored_bytes += len(body)
        # JSON may double the text.
        while len(self._bodies) > 1 and (self._stored_bytes > self._max_bytes * 2 or len(self._bodies) > _MAX_MESSAGES):
            self._stored_bytes -= len(self._bodies.popleft())
            self._skipped = True

    def set_broker_final(self, err: str | None, cause: str | None, state: str | None) -> None:
        """Set the final message when the broker ends the eval itself."""
        self.final = _Final(err=err, cause=cause, state=state)

    def _decode_end(self) -> tuple[_Final, _Chunk]:
        """Decode final message and value. Malformed JSON counts as truncated: the worker is not trusted."""
        try:
            final = self.final if isinstance(self.final, _Final) else _decode_final(self.final)
            value = _decode_chunk(self.value) if self.value else _Chunk()
        except msgspec.MsgspecError:
            return _Final(truncated=True), _Chunk()
        if value.mime is not None and len(self.value) > self._max_bytes:
            value.mime, value.truncated = None, True
        return final, value

    def summary(self) -> dict[str, Any]:
        """Return the fields of `eval/finished` about output and result, about `max_bytes` together."""
        final, value = self._decode_end()
        out = err = ""
        images: list[dict[str, Any]] = []
        truncated = self._skipped or final.truncated or value.truncated
        for body in self._bodies or ():
            try:
                chunk = _decode_chunk(body)
            except msgspec.MsgspecError:
                truncated = True
                continue
            if chunk.mime is not None:
                images.append(chunk.mime)
            elif chunk.status is None:
                out += chunk.out or ""
                err += chunk.err or ""
        out_kept, err_kept = tail_utf8(out, self._max_bytes // 2), tail_utf8(err, self._max_bytes // 2)
        return {
            "out": out_kept,
            "err": err_kept,
            "value": value.value,
            "ns": value.ns,
            "mime": value.mime,
            "images": images,
            "error": final.err,
            "truncated": truncated or len(out_kept) < len(out) or len(err_kept) < len(err),
            "error_type": None if final.ex is None else head_utf8(final.ex.type, _MAX_TYPE),
            "traceback": final.traceback,
            "cause": final.cause,
            "state": final.state,
        }


def tail_utf8(text: str, max_bytes: int) -> str:
    """Return the end of a text, at most so many bytes of UTF-8, in whole characters."""
    if len(text) * 4 <= max_bytes or len(data := text.encode("utf-8", "replace")) <= max_bytes:
        return text
    return data[-max_bytes:].decode("utf-8", "ignore")


def head_utf8(text: str, max_bytes: int) -> str:
    """Return the beginning of a text, at most so many bytes of UTF-8, in whole characters."""
    if len(text) * 4 <= max_bytes or len(data := text.encode("utf-8", "replace")) <= max_bytes:
        return text
    return data[:max_bytes].decode("utf-8", "ignore")
