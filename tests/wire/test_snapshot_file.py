"""The file of a saved session: its header, its checksum, and files that are none."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.replies import SkippedName
from replwire.snapshot_file import (
    CHECKSUM_BYTES,
    MAX_HEADER_BYTES,
    SnapshotChecksum,
    SnapshotHeader,
    SnapshotRefused,
    checksum_line,
    decode_header,
    encode_header,
)

HEADER = SnapshotHeader(
    runtime="python",
    runtime_version="3.11.7",
    saved_at="2026-11-23T06:24:08+00:00",
    session="work",
    count=2,
    bytes=5,
    skipped=[SkippedName("lock", "a lock belongs to its process")],
)


def build_file(payload: bytes = b"names") -> bytes:
    head = encode_header(HEADER) + payload
    return head + checksum_line(hashlib.sha256(head).hexdigest())


def is_valid(file: bytes, size: int) -> bool:
    checksum = SnapshotChecksum()
    for at in range(0, len(file), size):
        checksum.update(file[at : at + size])
    return checksum.is_valid


def test_a_header_is_read_as_it_was_written() -> None:
    data = encode_header(HEADER)
    assert decode_header(data + b"more\n") == (HEADER, len(data))


def test_a_header_that_is_too_long_says_how_many_names_it_lacks() -> None:
    left = [SkippedName(f"name{n}", "x" * 200) for n in range(1000)]
    data = encode_header(SnapshotHeader(**{**vars_of(HEADER), "skipped": left}))
    assert len(data) <= MAX_HEADER_BYTES
    assert decode_header(data)[0].skipped == [SkippedName("…", "1000 names")]


def vars_of(header: SnapshotHeader) -> dict[str, object]:
    return {name: getattr(header, name) for name in header.__struct_fields__}


@pytest.mark.parametrize("version", [0, 2, 10, 999_999])
def test_another_format_version_is_refused_by_its_number(version: int) -> None:
    data = encode_header(HEADER).replace(b"session 1", b"session %d" % version, 1)
    with pytest.raises(SnapshotRefused, match=f"format version {version}, and this replctl reads version 1"):
        decode_header(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    for file in (data, b"replctl session " + data, b"replctl session 1\n" + data):
        try:
            header, length = decode_header(file)
        except SnapshotRefused:
            continue
        assert file[length - 1 : length] == b"\n"
        assert header.bytes >= 0


@given(st.integers(0, len(build_file()) - 1), st.integers(1, 255))
def test_a_file_with_one_byte_changed_is_never_valid(at: int, change: int) -> None:
    file = bytearray(build_file())
    file[at] ^= change
    assert not is_valid(bytes(file), 64)


@given(st.integers(1, len(build_file()) + 1), st.integers(0, len(build_file())))
def test_a_checksum_does_not_depend_on_the_parts_and_sees_a_cut(size: int, cut: int) -> None:
    file = build_file()
    assert is_valid(file, size)
    assert is_valid(file[:cut], size) == (cut == len(file))
    assert not is_valid(file + b"\n", size)


def test_a_header_that_never_ends_is_not_searched_for_ever() -> None:
    with pytest.raises(SnapshotRefused, match="header is damaged"):
        decode_header(b"replctl session 1\n" + b" " * (2 * MAX_HEADER_BYTES) + b"\n")


def test_nothing_but_a_checksum_is_no_file() -> None:
    assert not is_valid(b"", 1)
    assert not is_valid(b"x" * CHECKSUM_BYTES, 7)
