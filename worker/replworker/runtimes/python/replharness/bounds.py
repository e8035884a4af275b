"""Limits of the harness, and truncation of text."""

from __future__ import annotations

from . import SEALED

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

__builtins__ = SEALED

NAME_CHARS = 256
PATH_CHARS = 1024
MESSAGE_BYTES = 4096
CHANGED_NAMES = 100
CUT_MARK = "…[truncated]"

_type_name = type.__dict__["__name__"].__get__


class HarnessLimits:
    """Limits set by the worker on assignment. Values out of range are clamped.

    value_bytes: UTF-8 bytes of a value's text, 0..1 MiB. trace_frames: frames shown of a traceback, 2..1000.
    trace_bytes: UTF-8 bytes of a traceback's text, 256..1 MiB. image_bytes: base64 bytes of an image, or bytes of
    another rich form, 0..4 MiB. images: figures of an eval returned as images, 0..100.
    """

    def __init__(self) -> None:
        self.value_bytes = 10240
        self.trace_frames = 20
        self.trace_bytes = 16384
        self.image_bytes = 1_000_000
        self.images = 8

    def update(self, wanted: Any) -> None:
        if isinstance(wanted, dict):
            self.value_bytes = _within(wanted.get("value-bytes"), self.value_bytes, 0, 1 << 20)
            self.trace_frames = _within(wanted.get("trace-frames"), self.trace_frames, 2, 1000)
            self.trace_bytes = _within(wanted.get("trace-bytes"), self.trace_bytes, 256, 1 << 20)
            self.image_bytes = _within(wanted.get("image-bytes"), self.image_bytes, 0, 1 << 22)
            self.images = _within(wanted.get("images"), self.images, 0, 100)


def _within(value: Any, default: int, low: int, high: int) -> int:
    return min(max(value, low), high) if type(value) is int else default


def plain(text: str) -> str:
    """Return the text as an exact str that UTF-8 can encode: lone surrogates become backslash escapes."""
    text = str.__str__(text)  # a subclass may override the methods below
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut(text: str, limit: int) -> tuple[str, int]:
    """Truncate to `limit` UTF-8 bytes, never inside a character; return it and the bytes left out."""
    text = str.__str__(text)
    if len(text) <= limit and text.isascii():
        return text, 0
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8"), 0
    kept = data[:limit].decode("utf-8", "ignore")
    return kept, len(data) - len(kept.encode("utf-8"))


def cut_marked(text: str, limit: int) -> str:
    """Truncate to `limit` UTF-8 bytes and append a mark if there was more."""
    kept, dropped = cut(text, limit)
    return kept + CUT_MARK if dropped else kept


def cut_middle(text: str, limit: int) -> str:
    """Truncate in the middle to `limit` UTF-8 bytes, with a line that counts the rest."""
    data = str.__str__(text).encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    room = max(limit - 48, 0)  # 48: the line in the middle, with any number of digits
    head, tail = data[: room // 2], data[len(data) - (room - room // 2) :]
    omitted = len(data) - len(head) - len(tail)
    middle = "\n  ... %d bytes not shown\n" % omitted
    return head.decode("utf-8", "ignore") + middle + tail.decode("utf-8", "ignore")


def type_name(kind: type) -> str:
    """Return a class's name without running metaclass code."""
    name = plain(_type_name(kind))
    return name if len(name) <= NAME_CHARS else name[:NAME_CHARS] + CUT_MARK
