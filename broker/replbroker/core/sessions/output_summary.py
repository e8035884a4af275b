"""What an eval showed while it ran, as far as its events keep it: the end of its text, and what fits of the rest.

The messages pass by as the worker wrote them. They are only counted and kept here; they are read once, at the end.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

_MAX_TYPE = 200  # bytes of the name of an exception's type
_MAX_MESSAGES = 2000  # a loop that prints and flushes makes one message a line


class _Chunk(msgspec.Struct):
    """A message on the way, as far as it matters here."""

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
    """The last message of an eval."""

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
    """Messages of one eval, `most` bytes of them, the newest."""

    __slots__ = ("_bodies", "_kept", "_last", "_most", "_skipped", "_value", "bytes", "messages")

    def __init__(self, most: int) -> None:
        self._most = most
        self._bodies: deque[bytes] | None = None  # most evals show nothing
        self._kept = 0
        self._skipped = False
        self._value = b""
        self._last: bytes | _Final = _NO_FINAL
        self.messages = 0
        self.bytes = 0

    def add(self, body: bytes, *, text: bool) -> None:
        """One more that is not about its end: text, or a figure, which is kept whole or not at all."""
        self.messages += 1
        self.bytes += len(body)
        if not text and len(body) > self._most:
            self._skipped = True
            return
        if self._bodies is None:
            self._bodies = deque()
        self._bodies.append(body)
        self._kept += len(body)
        # JSON may double the text.
        while len(self._bodies) > 1 and (self._kept > self._most * 2 or len(self._bodies) > _MAX_MESSAGES):
            self._kept -= len(self._bodies.popleft())
            self._skipped = True

    def set_final(self, last: bytes, value: bytes = b"") -> None:
        """Its value and its last message."""
        self._last, self._value = last, value

    def set_broker_final(self, err: str | None, cause: str | None, state: str | None) -> None:
        """The last message, when the broker writes it."""
        self._last = _Final(err=err, cause=cause, state=state)

    def _decode_end(self) -> tuple[_Final, _Chunk]:
        """What is no JSON says nothing: it is the worker's word, for its client to judge."""
        try:
            last = self._last if isinstance(self._last, _Final) else _decode_final(self._last)
            value = _decode_chunk(self._value) if self._value else _Chunk()
        except msgspec.MsgspecError:
            return _Final(truncated=True), _Chunk()
        if value.mime is not None and len(self._value) > self._most:
            value.mime, value.truncated = None, True
        return last, value

    def summary(self) -> dict[str, Any]:
        """The fields of `eval/finished` that come from here, within about `most` bytes together."""
        last, value = self._decode_end()
        out = err = ""
        images: list[dict[str, Any]] = []
        truncated = self._skipped or last.truncated or value.truncated
        for body in self._bodies or ():
            try:
                shown = _decode_chunk(body)
            except msgspec.MsgspecError:
                truncated = True
                continue
            if shown.mime is not None:
                images.append(shown.mime)
            elif shown.status is None:
                out += shown.out or ""
                err += shown.err or ""
        out_kept, err_kept = tail_utf8(out, self._most // 2), tail_utf8(err, self._most // 2)
        return {
            "out": out_kept,
            "err": err_kept,
            "value": value.value,
            "ns": value.ns,
            "mime": value.mime,
            "images": images,
            "error": last.err,
            "truncated": truncated or len(out_kept) < len(out) or len(err_kept) < len(err),
            "error_type": None if last.ex is None else head_utf8(last.ex.type, _MAX_TYPE),
            "traceback": last.traceback,
            "cause": last.cause,
            "state": last.state,
        }


def tail_utf8(text: str, most: int) -> str:
    """The end of a text, at most so many bytes of UTF-8, whole characters."""
    if len(text) * 4 <= most or len(data := text.encode("utf-8", "replace")) <= most:
        return text
    return data[-most:].decode("utf-8", "ignore")


def head_utf8(text: str, most: int) -> str:
    """The beginning of a text, in the same way."""
    if len(text) * 4 <= most or len(data := text.encode("utf-8", "replace")) <= most:
        return text
    return data[:most].decode("utf-8", "ignore")
