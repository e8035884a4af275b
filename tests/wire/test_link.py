"""Frames between broker and worker, and messages to clients: what goes in comes out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire import link
from replwire.identities import Principal
from replwire.limits import Limits
from replwire.link import (
    HEADER_BYTES,
    AssignBody,
    AssignedBody,
    CancelBody,
    ExitedBody,
    FrameKind,
    Header,
    HelloBody,
    pack,
    unpack,
)
from replwire.replies import ExceptionInfo, Reply, StackFrame, decode, encode

BYTE, WORD, LONG = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(Header, kind=BYTE, outcome=BYTE, epoch=WORD, eval=WORD, route=LONG, first=WORD)


@given(header=HEADERS, body=st.binary(max_size=50))
def test_a_frame_holds_its_header_and_its_body(header: Header, body: bytes) -> None:
    fields = header._asdict()
    frame = pack(fields.pop("kind"), body, **fields)
    assert unpack(frame) == header
    assert frame[HEADER_BYTES:] == body


@given(st.binary(max_size=HEADER_BYTES - 1))
def test_fewer_bytes_than_a_header_are_no_frame(frame: bytes) -> None:
    with pytest.raises(ValueError, match="shorter than its header"):
        unpack(frame)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES * 2))
def test_any_other_bytes_are_a_frame(frame: bytes) -> None:
    fields = unpack(frame)._asdict()
    assert pack(fields.pop("kind"), frame[HEADER_BYTES:], **fields) == frame


def test_what_is_not_said_is_zero() -> None:
    assert unpack(pack(FrameKind.HEARTBEAT)) == Header(
        kind=FrameKind.HEARTBEAT, outcome=0, epoch=0, eval=0, route=0, first=0
    )


@pytest.mark.parametrize(
    "body",
    [
        HelloBody("token"),
        AssignBody(
            session="id",
            name=None,
            owner=Principal(identity="uid:7", groups=(7, 8)),
            cwd="/é",
            env=["A=1"],
            limits=Limits(max_sessions=3),
            lost_cause="why",
        ),
        AssignedBody(),
        AssignedBody("no such directory"),
        CancelBody(),
        CancelBody(limit_ms=1),
        ExitedBody("killed by SIGKILL"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_every_body_comes_back_as_it_was(body: msgspec.Struct) -> None:
    assert msgspec.json.decode(link.encode(body), type=type(body)) == body


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
REPLIES = st.builds(
    Reply,
    id=st.text(st.characters(exclude_categories=["Cs"])),
    status=st.none() | st.lists(st.sampled_from(["done", "error", "timeout"])),
    out=TEXT,
    err=TEXT,
    value=TEXT,
    created=st.none() | st.booleans(),
    eval_id=st.none() | st.integers(0, 2**63),
    ex=st.none() | st.builds(ExceptionInfo),
    stacktrace=st.none() | st.lists(st.builds(StackFrame)),
    mime=st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9)),
)


@given(REPLIES)
def test_a_reply_comes_back_as_it_was(reply: Reply) -> None:
    assert decode(encode(reply)) == reply


def test_keys_that_are_not_set_are_absent_and_the_others_kebab_case() -> None:
    assert encode(Reply(id="a", eval_id=0, retry_after_ms=5)) == b'{"id":"a","eval-id":0,"retry-after-ms":5}'


def test_keys_of_a_later_version_are_ignored() -> None:
    assert decode(b'{"id":"a","new-in-2":{}}') == Reply(id="a")
