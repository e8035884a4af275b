"""Versions of a session's files: what its directory had at each checkpoint, to go back to or to compare with.

The lists of files are in memory, so each copy of the interpreter has those of its moment; contents are written once,
when a file has changed. All of this runs with the session's own rights, and what a session spoils is its own.
"""

from __future__ import annotations

import os
import stat
import time
from collections import namedtuple

from . import SEALED
from .file_contents import ContentFile
from .file_tree import TreeWalk, open_file, signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional, Tuple

    FileList = Dict[bytes, "FileVersion"]

__builtins__ = SEALED

_TICK_NS = 20_000_000  # two changes within one tick of the kernel's clock have the same time
_SPECIAL = "sockets, pipes and devices are not kept"

# status: signature; content: the ContentFile; at: its place there; link: target of a symbolic link; is_sure: another
# change would have another signature. Neither content nor link: a directory, or a file whose content is not kept.
FileVersion = namedtuple("FileVersion", "status content at link is_sure")


class FileVersions:
    """Lists of the files below `root` by number; their contents take at most twice `most` bytes."""

    def __init__(self, root: bytes, most: int) -> None:
        self.root = root
        self._most = most
        self._content = ContentFile(root, most)
        self.lists: Dict[int, FileList] = {}
        self.latest: FileList = {}

    def keep(self, number: int, live: Collection[int]) -> List[str]:
        """Keep a list of the present files, and of earlier ones those in `live`. Return what it lacks, in sentences."""
        self.lists = {each: files for each, files in self.lists.items() if each in live}
        scan = FileScan(self.latest, self._append)
        walk = TreeWalk(scan.visit)
        scan.skip = walk.skip
        try:
            walk.run(self.root)
        finally:
            scan.skip = None  # else the two keep each other
        self.lists[number] = self.latest = scan.found
        return sentences(walk.skipped)

    def _append(self, fd: int) -> Optional[Tuple[ContentFile, int]]:
        """Append a content, if need be to a further file; return its place, or None if there is no room."""
        at = self._content.append(fd)
        if at < 0:
            lists = [*self.lists.values()]
            used = {id(each.content) for files in lists for each in files.values() if each.content is not None}
            if len(used | {id(self._content)}) > 1:
                return None
            self._content = ContentFile(self.root, self._most)
            at = self._content.append(fd)
        return None if at < 0 else (self._content, at)


class FileScan:
    """Makes a list of files, with the contents of those that have changed since an earlier list."""

    def __init__(self, before: FileList, append: Any) -> None:
        self.found: FileList = {}
        self.skip: Any = None
        self._before = before
        self._append = append
        self._sure_until = time.time_ns() - _TICK_NS

    def visit(self, directory: int, name: bytes, path: bytes, status: os.stat_result) -> None:
        """Add an entry."""
        now = signature(status)
        before = self._before.get(path)
        if before is not None and before.is_sure and before.status == now:
            self.found[path] = before
            return
        is_sure = status.st_ctime_ns < self._sure_until
        kind = stat.S_IFMT(status.st_mode)
        content, at, link = None, 0, None
        try:
            if kind == stat.S_IFREG:
                content, at = self._content_of(directory, name, path, status.st_size, before)
            elif kind == stat.S_IFLNK:
                link = os.readlink(name, dir_fd=directory)
            elif kind != stat.S_IFDIR:
                self.skip(_SPECIAL, path)
        except OSError as exc:
            self.skip(exc.strerror or str(exc), path)
        self.found[path] = FileVersion(now, content, at, link, is_sure)

    def _content_of(self, directory: int, name: bytes, path: bytes, size: int, before: Any) -> Any:
        fd = open_file(name, directory)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None, 0
            is_kept = before is not None and before.content is not None and before.status[1] == size
            if is_kept and before.content.equals(fd, before.at, size):
                return before.content, before.at
            place = self._append(fd)
        finally:
            os.close(fd)
        if place is None:
            self.skip("files beyond the limit (max-checkpoint-file-bytes) are not kept", path)
            return None, 0
        return place


def sentences(skipped: Dict[str, Tuple[int, bytes]]) -> List[str]:
    """Say what was left out."""
    found = []
    for reason, (count, example) in list(skipped.items())[:10]:
        shown = example.decode("utf-8", "backslashreplace")[-100:]
        more = " and %d more" % (count - 1) if count > 1 else ""
        found.append("files: %s: %s%s" % (reason, shown, more))
    return found
