"""Files for `load-file`: only below allowed directories, with symlinks resolved.

The check is done on the open descriptor, so the file cannot be exchanged meanwhile. Errors do not reveal paths, nor
whether a file exists outside the directories.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from replwire.faults import RequestError
from replwire.identifiers import path_error
from replwire.policy import is_within
from replworker.sandbox.rights import Grant, acting_as
from replworker.sandbox.workspace import EVERYTHING

_DENIED = "path-not-allowed", "Path not allowed: not below a directory of session.load-paths"


class FileText(NamedTuple):
    """Text of a file and its real path."""

    code: str
    path: str


def read_file(
    file: str, cwd: str | None, allowed: tuple[str, ...], max_bytes: int, grant: Grant = EVERYTHING
) -> FileText:
    """Read a file of at most `max_bytes` with the rights of the session's owner.

    A relative path counts from the session's working directory.

    Raises:
        RequestError: the file is not allowed, missing, too long or not text
    """
    if not allowed:
        text = "load-file requires an explicit allowlist; no files are accessible by default"
        raise RequestError("path-not-allowed", text, hint="set session.load-paths in the broker's config")
    if (why := path_error("file", file)) is not None:
        raise RequestError("invalid-request", why)
    path = os.path.join(cwd or "/", file)
    roots = [os.path.realpath(root) for root in allowed]
    try:
        with acting_as(grant.rights):
            if not _may_load(os.path.realpath(path), roots, grant):
                raise RequestError(*_DENIED)
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError("file-not-found", "File not found") from None
    except PermissionError:
        raise RequestError("path-not-allowed", "Permission denied: path not accessible") from None
    except OSError:
        raise RequestError("io-error", "I/O error reading file") from None
    try:
        return _read(fd, roots, max_bytes, grant)
    except OSError:
        raise RequestError("io-error", "I/O error reading file") from None
    finally:
        os.close(fd)


def _may_load(real: str, roots: list[str], grant: Grant) -> bool:
    return is_within(real, roots) and (not grant.directories or is_within(real, grant.directories))


def _read(fd: int, roots: list[str], max_bytes: int, grant: Grant) -> FileText:
    real = os.readlink(f"/proc/self/fd/{fd}")
    if not _may_load(real, roots, grant):
        raise RequestError(*_DENIED)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError("invalid-request", "file: not a regular file")
    data = b""
    while len(data) <= max_bytes and (more := os.read(fd, max_bytes + 1 - len(data))):
        data += more
    if len(data) > max_bytes:
        text = f"the file is longer than {max_bytes} bytes (max-file-bytes = {max_bytes})"
        raise RequestError("message-too-large", text, limit="max-file-bytes", limit_value=max_bytes)
    try:
        return FileText(data.decode("utf-8-sig"), real)
    except UnicodeDecodeError as error:
        raise RequestError("invalid-request", f"file: not UTF-8: {error.reason} at byte {error.start}") from None
