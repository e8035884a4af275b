"""The python harness: whatever comes on the channel, it answers or it ends, and never hangs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = "op n code name silent stdin history max cwd env limits pos symbol file reload named"
FIELDS = st.dictionaries(st.sampled_from(NAMES.split()), JSON)
OP_NAMES = ["vars", "clear", "assign", "eval", "interrupt", "complete", "lookup", "dump", "restore", "checkpoint"]
OPS = st.builds(lambda op, fields: {**fields, "op": op}, st.sampled_from(OP_NAMES), FIELDS)
KEEP = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def feed(start_harness: Callable[..., Any], data: bytes) -> int:
    """The exit code after these bytes and the end of the stream."""
    harness = start_harness()
    try:
        harness.control.sendall(data)
        harness.control.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it had enough before all was said
    code = harness.exit_code()
    assert isinstance(code, int)
    return code


@KEEP
@given(st.binary(max_size=200))
def test_random_bytes_end_it(start_harness: Callable[..., Any], data: bytes) -> None:
    assert feed(start_harness, data) in (0, 70)


@KEEP
@given(st.binary(max_size=100))
def test_a_random_body_is_refused(start_harness: Callable[..., Any], body: bytes) -> None:
    assert feed(start_harness, len(body).to_bytes(4, "big") + body) == 70


@KEEP
@given(st.lists(FIELDS | OPS, max_size=4))
def test_random_objects_are_answered_or_refused(
    start_harness: Callable[..., Any], messages: list[dict[str, Any]]
) -> None:
    bodies = [json.dumps(message).encode() for message in messages]
    assert feed(start_harness, b"".join(len(b).to_bytes(4, "big") + b for b in bodies)) in (0, 70)


@pytest.mark.parametrize(
    "data",
    [
        (8 * 1024 * 1024 + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff{}",
        b"\0\0\0\0",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b'\0\0\0\x09{"op": 1}',
        b'\0\0\0\4"\xff\xfe"',
        b"\0\x03\x0d\x40" + b"[" * 200_000,
    ],
)
def test_what_is_not_a_frame_ends_it_with_its_own_code(start_harness: Callable[..., Any], data: bytes) -> None:
    assert feed(start_harness, data) == 70


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x10{"])
def test_the_end_of_the_stream_is_a_quiet_end(start_harness: Callable[..., Any], data: bytes) -> None:
    assert feed(start_harness, data) == 0


def test_frames_in_pieces_and_frames_in_one_go(harness: Any) -> None:
    text = json.dumps({"op": "eval", "n": 1, "code": "len('" + "x" * 300_000 + "')", "name": "<w:1>"}).encode()
    data = len(text).to_bytes(4, "big") + text
    for start in (0, 1, 3, 5, 70_000):
        harness.control.sendall(data[:start])
        harness.control.sendall(data[start:])
        assert harness.result(1)["value"] == "300000"
    small = json.dumps({"op": "eval", "n": 2, "code": "'interrupt'", "name": "<w:2>"}).encode()
    harness.control.sendall((len(small).to_bytes(4, "big") + small) * 50)
    assert [harness.result(2)["value"] for _ in range(50)] == ["'interrupt'"] * 50


def test_a_frame_of_eight_mebibytes_is_read(harness: Any) -> None:
    head, tail = b'{"op":"eval","n":1,"name":"<w:1>","code":"#', b'"}'
    body = head + b"x" * (8 * 1024 * 1024 - len(head) - len(tail)) + tail
    harness.control.sendall(len(body).to_bytes(4, "big") + body)
    assert harness.result(1)["outcome"] == "ok"


def test_the_descriptors_of_the_harness_are_not_inherited(harness: Any) -> None:
    code = "import os, subprocess\nsubprocess.check_output('ls -l /proc/self/fd', shell=True, close_fds=False).decode()"
    assert "socket:" not in harness.value(code)
    assert harness.value("import threading; threading.active_count(), len(os.listdir('/proc/self/task'))") == "(1, 1)"
