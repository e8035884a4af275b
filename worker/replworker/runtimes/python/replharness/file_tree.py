"""Entries of a directory tree, walked by descriptors: no symbolic link is followed, whatever is exchanged meanwhile."""

from __future__ import annotations

import os
import stat

from . import SEALED
from .ignore_rules import MAX_FILE_BYTES, IgnoreRules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    Signature = Tuple[int, int, int, int, int]  # mode, size, times of content and status in ns, inode

__builtins__ = SEALED

MAX_ENTRIES = 100_000
_MAX_DEPTH = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEVER = b".git"  # belongs to the user's git alone


def signature(status: os.stat_result) -> Signature:
    """Return what changes with a file, except for writes within one tick of the kernel's clock."""
    return (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def open_directory(path: bytes, at: Optional[int] = None) -> int:
    """Open a directory; raises OSError if there is something else."""
    return os.open(path, _DIRECTORY, dir_fd=at)


def open_file(name: bytes, at: int) -> int:
    """Open whatever has this name in a directory, without waiting; raises OSError for a symbolic link."""
    return os.open(name, _FILE, dir_fd=at)


class TreeWalk:
    """One walk through a tree: calls `visit(directory, name, path, status)` for every entry that is not ignored.

    `skipped` counts what is left out, by reason, with an example.
    """

    def __init__(self, visit: Callable[[int, bytes, bytes, os.stat_result], None]) -> None:
        self._visit = visit
        self._count = 0
        self.skipped: Dict[str, Tuple[int, bytes]] = {}

    def run(self, root: bytes) -> None:
        """Walk through a directory. Raises OSError if it cannot be opened."""
        fd = open_directory(root)
        try:
            self._walk(fd, b"", outer_rules(root), 0)
        finally:
            os.close(fd)

    def skip(self, reason: str, path: bytes) -> None:
        """Count an entry that is left out."""
        count, example = self.skipped.get(reason, (0, path))
        self.skipped[reason] = (count + 1, example)

    def _walk(self, fd: int, above: bytes, rules: IgnoreRules, depth: int) -> None:
        rules = rules.extend(_read_rules(fd), len(above))
        with os.scandir(fd) as entries:
            found = sorted((os.fsencode(entry.name), entry) for entry in entries)
        for name, entry in found:
            path = above + name
            if name == NEVER:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it is gone
                continue
            is_directory = stat.S_ISDIR(status.st_mode)
            if rules.ignores(path, is_directory):
                continue
            self._count += 1
            if self._count > MAX_ENTRIES:
                self.skip("more than %d entries" % MAX_ENTRIES, path)
                continue
            self._visit(fd, name, path, status)
            if is_directory:
                self._enter(fd, name, path, rules, depth)

    def _enter(self, fd: int, name: bytes, path: bytes, rules: IgnoreRules, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            self.skip("more than %d directories deep" % _MAX_DEPTH, path)
            return
        try:
            inner = open_directory(name, fd)
        except OSError as exc:
            self.skip(exc.strerror or str(exc), path)
            return
        try:
            self._walk(inner, path + b"/", rules, depth + 1)
        except OSError as exc:
            self.skip(exc.strerror or str(exc), path)
        finally:
            os.close(inner)


def outer_rules(root: bytes) -> IgnoreRules:
    """Return the rules of the directories above, up to that of the repository, and of its own list."""
    top, below = os.path.abspath(root), b""
    chain: List[Tuple[bytes, bytes]] = []
    while not os.path.lexists(os.path.join(top, NEVER)):
        parent = os.path.dirname(top)
        if parent == top:
            return IgnoreRules()
        below = os.path.basename(top) + b"/" + below
        top = parent
        chain.append((top, below))
    rules = IgnoreRules(None, _read_text(os.path.join(top, NEVER, b"info", b"exclude")), -len(below))
    for directory, path in reversed(chain):
        rules = rules.extend(_read_text(os.path.join(directory, b".gitignore")), -len(path))
    return rules


def _read_rules(fd: int) -> bytes:
    try:
        file = open_file(b".gitignore", fd)
    except OSError:
        return b""
    return _read_all(file)


def _read_text(path: bytes) -> bytes:
    try:
        return _read_all(os.open(path, _FILE))
    except OSError:
        return b""


def _read_all(file: int) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        return os.read(file, MAX_FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
