"""File of a saved session: a header that describes it, the snapshot as its interpreter wrote it, and a checksum.

replctl session 1                    the format's version
{"runtime":"python",…}               one line of JSON
…                                    `bytes` bytes, read by an interpreter in its sandbox only
sha256 0123…                         of everything before
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from replwire.replies import SkippedName

FORMAT_VERSION: Final = 1
MAX_HEADER_BYTES: Final = 64 * 1024
MAGIC: Final = b"replctl session "
_CHECKSUM: Final = b"sha256 "
CHECKSUM_BYTES: Final = len(_CHECKSUM) + 64 + 1
_MAX_DIGITS: Final = 10

Word = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[ -~]*\Z")]


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Header of the file. `saved-at` is an ISO time, `bytes` the size of the snapshot without header and checksum."""

    runtime: Word
    runtime_version: Word
    saved_at: Word
    session: Annotated[str, Meta(max_length=256)] | None = None
    count: Annotated[int, Meta(ge=0)]
    bytes: Annotated[int, Meta(ge=0)]
    skipped: Annotated[list[SkippedName], Meta(max_length=1000)] = []


class SnapshotRefused(ValueError):
    """The file cannot be used. The message says why."""


_decode = msgspec.json.Decoder(SnapshotHeader).decode


def encode_header(header: SnapshotHeader) -> bytes:
    """Encode a header, without skipped names if it is too long with them."""
    lines = _lines(header)
    if len(lines) > MAX_HEADER_BYTES:
        left = [SkippedName("…", f"{len(header.skipped)} names")]
        lines = _lines(msgspec.structs.replace(header, skipped=left))
    return lines


def _lines(header: SnapshotHeader) -> bytes:
    return b"%s%d\n%s\n" % (MAGIC, FORMAT_VERSION, msgspec.json.encode(header))


def decode_header(data: bytes) -> tuple[SnapshotHeader, int]:
    """Decode the header at the beginning of a file.

    Args:
        data: The file's first bytes, with the whole header.

    Returns:
        The header, and its length in bytes.

    Raises:
        SnapshotRefused: It is no such file, of another format version, or damaged.
    """
    end = data.find(b"\n", 0, len(MAGIC) + _MAX_DIGITS + 1)
    version = data[len(MAGIC) : end]
    if not data.startswith(MAGIC) or end < 0 or not version.isdigit():
        raise SnapshotRefused("not a session saved by replctl")
    if int(version) != FORMAT_VERSION:
        raise SnapshotRefused(
            f"it has format version {int(version)}, and this replctl reads version {FORMAT_VERSION}: "
            "load it with the replctl that saved it"
        )
    length = data.find(b"\n", end + 1, MAX_HEADER_BYTES) + 1
    if not length:
        raise SnapshotRefused("its header is damaged, or not in the first part")
    try:
        return _decode(data[end + 1 : length]), length
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SnapshotRefused("its header is damaged") from None


class SnapshotChecksum:
    """Checksum of a file of which the parts come one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._end = b""  # what may be the checksum's line

    def update(self, part: bytes) -> None:
        """Add the next part."""
        data = self._end + part
        self._hash.update(memoryview(data)[:-CHECKSUM_BYTES])
        self._end = data[-CHECKSUM_BYTES:]

    @property
    def is_valid(self) -> bool:
        """True if the file ends here, with the right checksum."""
        return self._end == checksum_line(self._hash.hexdigest())


def checksum_line(digest: str) -> bytes:
    """Return the last line of a file."""
    return b"%s%s\n" % (_CHECKSUM, digest.encode())
