"""Requests that nobody should send: made from the table of operations, and what each of them must be answered with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

from replwire.faults import FAULTS, STATUSES
from replwire.requests import OPS, describe_ops

ENDING = "shutdown"  # the op that a shared broker must not be asked well
MOST_TEXT = 2_000  # characters of a sentence: what was sent is not sent back at length

# Text of JSON, since much of it no encoder would write.
VALUES: tuple[str, ...] = (
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "2147483648",
    "18446744073709551616",
    "-9223372036854775809",
    "1" + "0" * 5000,
    "1.0",
    "1.5",
    "-0.0",
    "1e3",
    "1e400",
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "+1",
    ".5",
    "1.",
    '""',
    '" "',
    '"s"',
    '"no-such"',
    '"bad name!"',
    '"\\u0000"',
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\uFFFF"',
    '"é"',
    '"\\n"',
    '"a\\nb"',
    '"/"',
    '"../../no-such/passwd"',  # `put-file` would write an existing one where nothing is sandboxed
    '"python"',
    '"create"',
    '"reuse"',
    '"out"',
    '"' + "x" * 257 + '"',
    '"' + "x" * 100_000 + '"',
    '"' + "\\u0000" * 300 + '"',
    '"' + "é" * 129 + '"',
    '"/\\u0000"',
    '"/dev/null"',
    '"/no/such"',
    '"/' + "x" * 50_000 + '"',
    '["=A=1"]',
    '["A\\n=1"]',
    '["A=' + "x" * 50_000 + '"]',
    "[]",
    "[1]",
    '["A=1"]',
    '["A"]',
    '["=", "A\\u0000=1"]',
    "[null]",
    "[[]]",
    "[" * 500 + "]" * 500,
    "[" * 20_000 + "]" * 20_000,
    "{}",
    '{"a":{}}',
    '{"a":1,"a":2}',
    "tru",
    "'s'",
    "undefined",
    "",
    "1 2",
    '"open',
)
_BAD_UTF8 = (b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\xf8\x88\x80\x80\x80"')
RAW_VALUES = tuple(value.encode() for value in VALUES) + _BAD_UTF8

# What a field is given when it is not the one that is being misused.
GOOD: dict[str, str] = {
    "session": '"s"',
    "code": '"1"',
    "eval-id": "1",
    "input": '"x"',
    "runtime": '"python"',
    "name": '"s"',
    "wait-ms": "0",
    "offset": "0",
}


def _line(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(b'"' + key + b'":' + value for key, value in pairs) + b"}"


def _fields(op: str) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(OPS[op])]


def _needed(op: str) -> list[str]:
    """Return the fields that a request needs to pass its decoder, and a session where one is allowed."""
    return list(dict.fromkeys([*describe_ops()[op]["requires"], "session"]))


def one_bad_field(op: str) -> Iterator[bytes]:
    """Every field of an operation with every bad value, the rest in order; and with the good value behind the bad.

    Fields that nobody knows are the same for all: `ping` has them too.
    """
    unknown = ("no-such-field", "No_Kebab") if op == "ping" else ()
    needed = {name: GOOD.get(name, '"s"').encode() for name in _needed(op)}
    number = 0
    for field in (*_fields(op), *unknown):
        for value in RAW_VALUES:
            number += 1
            pairs = {b"id": b'"b%d"' % number, b"op": json.dumps(op).encode()}
            pairs |= {name.encode(): good for name, good in needed.items()}
            before = list(pairs.items())
            yield _line(list((pairs | {field.encode(): value}).items()))
            if field in needed or field in ("id", "op"):
                yield _line([(field.encode(), value), *before])


def due(line: bytes) -> str | None:
    """Return the id that a line has to be answered with; None when it must not be answered."""
    if not line.strip():
        return None
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    request_id = raw.get("id") if isinstance(raw, dict) else None
    return request_id if isinstance(request_id, str) else ""


def check_end(message: dict[str, Any]) -> None:
    """Check a final message of any request: known words, one sentence, and no lost worker."""
    status = message["status"]
    words = set(status) - {"done", "error", "subscribed"}
    assert status[0] == "done" or status == ["subscribed"], message
    assert words <= FAULTS.keys() | STATUSES.keys(), message
    assert not words & {"internal-error", "worker-lost", "rate-limited"}, message
    if "error" in status:
        assert message["err"], message
    for key in ("err", "cause", "hint", "name"):
        assert len(message.get(key) or "") < MOST_TEXT, (key, message[key][:200])


def requests(op: str) -> st.SearchStrategy[list[tuple[bytes, bytes]]]:
    """Return a strategy for fields of `op` with good and bad values, some of them twice."""
    listed = st.sampled_from(RAW_VALUES)
    anything = listed | st.text(max_size=20).map(lambda text: json.dumps(text).encode())
    fields = [name for name in _fields(op) if name not in ("id", "op")]
    pair = st.sampled_from(fields).flatmap(
        lambda name: st.tuples(
            st.just(name.encode()),
            st.just(GOOD.get(name, '"s"').encode()) | (listed if (op, name) == ("put-file", "file") else anything),
        )
    )
    head = [
        (b"op", json.dumps(op).encode()),
        *((name.encode(), GOOD.get(name, '"s"').encode()) for name in _needed(op)),
    ]
    return st.lists(pair, max_size=6).map(lambda pairs: [*head, *pairs])


def as_line(request_id: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Return the request with an id."""
    return _line([(b"id", b'"' + request_id + b'"'), *pairs])
