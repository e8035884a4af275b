"""DNS messages, as far as a server needs them that answers every query itself (RFC 1035). Pure."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

MAX_QUERY_BYTES = 4096
A, AAAA = 1, 28
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 1, 2, 3, 4
_IN = 1
_HEADER = struct.Struct("!HHHHHH")
_TTL_S = 60
_RESPONSE, _AUTHORITATIVE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0100, 0x0080


class Query(NamedTuple):
    """A query for one name. `question` is its part of the message, which the answer repeats."""

    id: int
    flags: int
    name: str
    type: int
    question: bytes


def parse_query(message: bytes) -> Query | None:
    """Parse a query with one question of class IN; None for anything else.

    A byte that no host name has becomes U+FFFD, so such a name is never allowed.
    """
    if len(message) < _HEADER.size or len(message) > MAX_QUERY_BYTES:
        return None
    number, flags, questions, _, _, _ = _HEADER.unpack_from(message)
    if flags & _RESPONSE or flags >> 11 & 0xF or questions != 1:
        return None
    labels: list[str] = []
    at = _HEADER.size
    while at < len(message) and (length := message[at]):
        if length > 63 or at + 1 + length > len(message) or len(labels) > 127:
            return None
        label = message[at + 1 : at + 1 + length].decode("ascii", "replace")
        labels.append(label.replace(".", "\ufffd"))
        at += 1 + length
    if at + 5 > len(message):
        return None
    kind, cls = struct.unpack_from("!HH", message, at + 1)
    if cls != _IN:
        return None
    return Query(number, flags, ".".join(labels), kind, message[_HEADER.size : at + 5])


def build_answer(query: Query, code: int, address: str | None = None) -> bytes:
    """Build the answer to a query: a response code, and an address if it has one."""
    flags = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | query.flags & _RECURSION_DESIRED | code
    head = _HEADER.pack(query.id, flags, 1, int(address is not None), 0, 0)
    if address is None:
        return head + query.question
    record = struct.pack("!HHHIH", 0xC00C, A, _IN, _TTL_S, 4) + ipaddress.IPv4Address(address).packed
    return head + query.question + record
