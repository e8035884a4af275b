"""Frames about the files of a session's directory; see `frames`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_FILE_CHANGES = 1000  # that an interpreter may list


class KeepFilesFrame(msgspec.Struct, tag_field="op", tag="keep-files"):
    """Keep the present files below `root` for checkpoint `number`, and of earlier lists those in `live`.

    Their contents take at most `max` bytes, and as much again while earlier lists need them.
    """

    n: int
    root: str
    max: int
    number: int
    live: list[int]


class RestoreFilesFrame(msgspec.Struct, tag_field="op", tag="restore-files"):
    """Bring back the files of a checkpoint."""

    n: int
    number: int


class CompareFilesFrame(msgspec.Struct, tag_field="op", tag="compare-files"):
    """List what has changed since a checkpoint, with a patch of at most `max` characters."""

    n: int
    number: int
    max: int


class FilesFrame(msgspec.Struct, tag_field="t", frozen=True, rename="kebab", tag="files", kw_only=True):
    """Reply to the three frames about files. `notes` say what is left out, in sentences."""

    n: int
    error: str | None = None
    notes: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=20)] = []
    changes: Annotated[list[tuple[str, str]], Meta(max_length=MAX_FILE_CHANGES)] = []
    patch: str = ""
    truncated: bool = False
