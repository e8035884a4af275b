"""Changes of files since a list."""

from __future__ import annotations

import os
import stat

from . import SEALED
from .file_tree import TreeWalk, open_directory, open_file, signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from .file_versions import FileVersions

__builtins__ = SEALED

_TEXT_BYTES = 1 << 20  # of files that are compared line by line


def compare(versions: FileVersions, number: int, most: int) -> Tuple[List[Tuple[str, str]], str, bool]:
    """Return changes since a list as (path, kind), a patch of at most `most` characters, and whether it was cut."""
    base = versions.lists[number]
    present: Dict[bytes, os.stat_result] = {}
    TreeWalk(lambda _, __, path, status: present.__setitem__(path, status)).run(versions.root)
    for path in base.keys() - present.keys():  # gone, or ignored since
        status = _status_below(versions.root, path)
        if status is not None:
            present[path] = status
    changes: List[Tuple[str, str]] = []
    patch: List[str] = []
    left = most
    for path in sorted(base.keys() | present.keys()):
        kind, old, new = _compare_one(versions.root, path, base.get(path), present.get(path))
        if kind is None:
            continue
        shown = path.decode("utf-8", "backslashreplace")
        changes.append((shown, kind))
        if left > 0 and old is not None and new is not None:
            text = _unified(shown, old, new)[: left + 1]
            left -= len(text)
            patch.append(text)
    text = "".join(patch)
    return changes, text[:most], len(text) > most


def _compare_one(root: bytes, path: bytes, before: Any, now: Any) -> Tuple[Any, Any, Any]:
    """Return the kind of a change or None, and both texts where they are texts; "" for a file that is not there."""
    if before is None:
        text = _present_text(root, path, now) if stat.S_ISREG(now.st_mode) else None
        return ("added", "" if text is not None else None, text) if not stat.S_ISDIR(now.st_mode) else (None,) * 3
    is_directory = stat.S_ISDIR(before.status[0])
    if now is None:
        return (None,) * 3 if is_directory else ("deleted", _kept_text(before), "")
    if (before.is_sure and before.status == signature(now)) or (is_directory and stat.S_ISDIR(now.st_mode)):
        return (None,) * 3
    if before.status[0] != now.st_mode:
        return (
            "mode" if _is_same(root, path, before, now) else "modified",
            _kept_text(before),
            _present_text(root, path, now),
        )
    if _is_same(root, path, before, now):
        return (None,) * 3
    return "modified", _kept_text(before), _present_text(root, path, now)


def _is_same(root: bytes, path: bytes, before: Any, now: Any) -> bool:
    """Return whether an entry has the same content as before."""
    if before.link is not None:
        return stat.S_ISLNK(now.st_mode) and _read_link(root, path) == before.link
    if before.content is None or before.status[1] != now.st_size or not stat.S_ISREG(now.st_mode):
        return before.content is None and before.status == signature(now)
    fd = _open_below(root, path)
    try:
        return bool(before.content.equals(fd, before.at, now.st_size))
    finally:
        os.close(fd)


def _open_parent(root: bytes, path: bytes) -> int:
    """Open the directory of an entry, without following a link."""
    parent = open_directory(root)
    for part in path.split(b"/")[:-1]:
        try:
            inner = open_directory(part, parent)
        finally:
            os.close(parent)
        parent = inner
    return parent


def _open_below(root: bytes, path: bytes) -> int:
    parent = _open_parent(root, path)
    try:
        return open_file(os.path.basename(path), parent)
    finally:
        os.close(parent)


def _read_link(root: bytes, path: bytes) -> bytes:
    parent = _open_parent(root, path)
    try:
        return os.readlink(os.path.basename(path), dir_fd=parent)
    finally:
        os.close(parent)


def _kept_text(before: Any) -> Any:
    if before.content is None or before.status[1] > _TEXT_BYTES:
        return None
    return _as_text(b"".join(before.content.read(before.at, before.status[1])))


def _present_text(root: bytes, path: bytes, now: Any) -> Any:
    if not stat.S_ISREG(now.st_mode) or now.st_size > _TEXT_BYTES:
        return None
    fd = _open_below(root, path)
    try:
        return _as_text(os.read(fd, _TEXT_BYTES))
    finally:
        os.close(fd)


def _as_text(data: bytes) -> Any:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _unified(path: str, old: str, new: str) -> str:
    import difflib

    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/" + path, "b/" + path)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _status_below(root: bytes, path: bytes) -> Any:
    try:
        parent = _open_parent(root, path)
    except OSError:
        return None
    try:
        return os.stat(os.path.basename(path), dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    finally:
        os.close(parent)
