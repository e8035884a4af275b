"""Newline framing: whole lines whatever the pieces, and never more than the bound in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replwire.line_framing import LineFramer


def test_lines_come_whole_however_they_were_cut() -> None:
    lines = LineFramer(100)
    assert lines.feed(b'{"a"') == []
    assert lines.feed(b":1}\n\n  \n{}") == [b'{"a":1}']
    assert lines.feed(b"\n") == [b"{}"]


def test_a_line_at_the_bound_passes_and_one_beyond_ends_the_stream() -> None:
    lines = LineFramer(5)
    assert lines.feed(b"12345\n123456\nok\n") == [b"12345", b"123456"]
    assert lines.overrun
    assert lines.feed(b"more\n") == []


def test_a_line_that_never_ends_is_not_collected() -> None:
    lines = LineFramer(10)
    assert lines.feed(b"x" * 1_000_000) == [b"x" * 11]
    assert lines.overrun


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b and b.strip())), st.data())
def test_any_cutting_of_a_stream_gives_the_same_lines(whole: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in whole)
    lines, found = LineFramer(20), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += lines.feed(stream[:size])
        stream = stream[size:]
    assert found == whole


@given(st.binary(), st.integers(1, 50))
def test_no_bytes_break_it_and_no_line_is_longer_than_the_bound_by_more_than_one(data: bytes, bound: int) -> None:
    assert all(len(line) <= bound + 1 for line in LineFramer(bound).feed(data))
