"""Removal of named environments: renamed at once, deleted later, also after a kill in between.

Directories are opened and renamed by descriptor; symlinks are never followed. Deletion does not descend: subdirectories
are moved up first, so depth costs neither stack nor descriptors.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from urllib.parse import quote

_ASIDE = ".removed"  # no environment's or owner's name begins with a dot
_BATCH = 1000  # names held in memory


def set_aside(directory: str, environment: str) -> None:
    """Move `@NAME` or `@OWNER/NAME`, which is not in use, out of the directory of named environments.

    Raises:
        OSError: it cannot be moved
    """
    owner, slash, name = environment[1:].rpartition("/")
    with _directory(directory) as top:
        with suppress(FileExistsError):
            os.mkdir(_ASIDE, 0o700, dir_fd=top)
        with _directory(_ASIDE, top) as aside, _directory(f"@{quote(owner, safe='')}" if slash else ".", top) as home:
            with suppress(FileNotFoundError):
                _move(name, home, aside)
            with suppress(FileNotFoundError):
                os.unlink(f".{name}.lock", dir_fd=home)


def set_aside_entry(directory: str, *names: str) -> None:
    """Move the directory with these names, one below the other, out of the way; do nothing if it is gone.

    Raises:
        OSError: it cannot be moved
    """
    with _directory(directory) as top, _directory(os.path.join(directory, *names[:-1])) as home:
        with suppress(FileExistsError):
            os.mkdir(_ASIDE, 0o700, dir_fd=top)
        with _directory(_ASIDE, top) as aside, suppress(FileNotFoundError):
            _move(names[-1], home, aside)


def has_set_aside(directory: str) -> bool:
    """Return whether something waits to be deleted, perhaps since an earlier broker."""
    return next(_names(directory), None) is not None


def delete_set_aside(directory: str) -> list[str]:
    """Delete the environments set aside; return what could not be deleted, and why."""
    failed: dict[str, str] = {}
    while batch := list(islice((name for name in _names(directory) if name not in failed), _BATCH)):
        with _directory(f"{directory}/{_ASIDE}") as aside:
            for name in batch:
                try:
                    _delete(name, aside)
                except OSError as error:
                    failed[name] = f"{directory}/{_ASIDE}/{name}: {error.strerror}"
    return list(failed.values())


def _names(directory: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(f"{directory}/{_ASIDE}") as entries:
        for entry in entries:
            yield entry.name


def _delete(name: str, aside: int) -> None:
    """Delete a directory and its files; its subdirectories move up to be next.

    Raises:
        OSError: it cannot be deleted
    """
    try:
        with _directory(name, aside, writable=True) as fd, os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _move(entry.name, fd, aside)
                else:
                    os.unlink(entry.name, dir_fd=fd)
        os.rmdir(name, dir_fd=aside)
    except NotADirectoryError:
        os.unlink(name, dir_fd=aside)


def _move(name: str, home: int, aside: int) -> None:
    """Move an entry to a unique name; a directory has to be writable itself.

    Raises:
        OSError: it cannot be moved
    """
    with suppress(NotADirectoryError), _directory(name, home, writable=True):
        pass
    os.rename(name, secrets.token_hex(8), src_dir_fd=home, dst_dir_fd=aside)


@contextmanager
def _directory(name: str, beside: int | None = None, *, writable: bool = False) -> Iterator[int]:
    """Open a directory without following a symlink; with `writable`, whatever its mode was.

    Raises:
        OSError: it cannot be opened
    """
    plain = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, plain | (os.O_PATH if writable else os.O_RDONLY), dir_fd=beside)
    try:
        if writable:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
            found, fd = fd, os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(found)
        yield fd
    finally:
        os.close(fd)
