"""Placeholders to values in a request's head, and values to asterisks in what comes back. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

MAX_HEAD_BYTES = 128 * 1024
_END = re.compile(rb"\r?\n\r?\n")
_BASIC = re.compile(rb"(?im)^((?:proxy-)?authorization:[ \t]*basic[ \t]+)([A-Za-z0-9+/=]+)")
_DROPPED = re.compile(rb"(?im)^(?:accept-encoding|connection|keep-alive|te|expect):[^\r\n]*\r?\n")
_UPGRADE = re.compile(rb"(?im)^upgrade:")


class HeadTooLong(Exception):
    """A request whose head does not end."""


def split_head(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the head of a request with its empty line, and what follows; None if it is not complete.

    Raises:
        HeadTooLong: it is longer than any that is served
    """
    end = _END.search(data)
    if end is None or end.end() > MAX_HEAD_BYTES:
        if len(data) > MAX_HEAD_BYTES:
            raise HeadTooLong
        return None
    return data[: end.end()], data[end.end() :]


def fill_head(head: bytes, values: Mapping[bytes, bytes]) -> bytes:
    """Return a request's head with values in place of placeholders.

    Only header fields change, and not the request line, which hosts log. Basic authentication is decoded for it. The
    answer is asked for uncompressed, so that values in it can be found, and the connection ends with it, so that every
    request comes with a head of its own.

    Args:
        head: The head with its empty line.
        values: Values by placeholder.
    """
    line, _, fields = head.partition(b"\n")
    upgrades = _UPGRADE.search(fields) is not None
    fields = _BASIC.sub(lambda found: found[1] + _fill_basic(found[2], values), fields)
    for placeholder, value in values.items():
        fields = fields.replace(placeholder, value)
    if upgrades:
        return line + b"\n" + fields
    return line + b"\nAccept-Encoding: identity\r\nConnection: close\r\n" + _DROPPED.sub(b"", fields)


def _fill_basic(token: bytes, values: Mapping[bytes, bytes]) -> bytes:
    try:
        plain = base64.b64decode(token, validate=True)
    except binascii.Error:
        return token
    filled = plain
    for placeholder, value in values.items():
        filled = filled.replace(placeholder, value)
    return token if filled == plain else base64.b64encode(filled)


class Redactor:
    """Replaces values in a stream by as many asterisks, also where a value comes in two pieces.

    Args:
        values: The values.
    """

    def __init__(self, values: list[bytes]) -> None:
        self._values = sorted(values, key=len, reverse=True)
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be passed on; a tail that may be the beginning of a value waits."""
        data = self._tail + data
        for value in self._values:
            data = data.replace(value, b"*" * len(value))
        waits = max((_overlap(data, value) for value in self._values), default=0)
        self._tail = data[len(data) - waits :]
        return data[: len(data) - waits]

    def finish(self) -> bytes:
        """Return what waits, at the end of the stream."""
        rest, self._tail = self._tail, b""
        return rest


def _overlap(data: bytes, value: bytes) -> int:
    """Return the length of the longest proper beginning of a value that the data ends with."""
    for length in range(min(len(value) - 1, len(data)), 0, -1):
        if data.endswith(value[:length]):
            return length
    return 0
