"""Placeholders for protected names that do not exist in a workspace.

A mount protects only existing names. Missing ones are created as empty as possible: usually a directory, which tools
ignore and git does not list. They are removed with the last session that works in the directory: sessions share a lock
on it, also across brokers, and a record lists what to remove. The kernel releases the lock when the worker dies, so the
next broker processes the record of a killed one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from replwire.policy import Policy, is_within
from replwire.private_directories import make_private_directory
from replworker.sandbox import bounded_read, mounts
from replworker.sandbox.rights import Rights, acting_as
from replworker.sandbox.workspace import protected_paths

# These have to be files. "." means the repository itself, like a missing file.
_FILES = {"/.git/commondir": b".\n", "/.git/config.worktree": b""}
_NEVER = ("/.git/config", "/.git/rebase-merge", "/.git/rebase-apply")  # meaningful to git even if empty
_MOST_RECORD_BYTES = 1024 * 1024
_LOCK_S, _LOCK_PAUSE_S = 1.0, 0.01
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create_placeholders(policy: Policy, root: str, records: str, rights: Rights | None = None) -> tuple[int, ...]:
    """Create missing protected names in `root` with these rights; return descriptors to keep open meanwhile.

    Raises:
        OSError: the directory cannot be opened or locked
    """
    if policy.profile != "workspace-write":
        return ()
    with ExitStack() as stack:
        record = _open_record(records, root)
        stack.callback(os.close, record)
        with acting_as(rights), _open_directory(root) as directory:
            _lock(directory)
            for name in _missing_names(policy, root):
                os.write(record, json.dumps([root, name]).encode() + b"\n")
                _make(directory, name, _placeholder_content(root, name), give=rights is None)
            lock = os.dup(directory)
        stack.pop_all()
    return lock, record


def remove_placeholders(records: str) -> None:
    """Remove placeholders that no session needs any more."""
    try:
        with os.scandir(records) as entries:
            paths = [entry.path for entry in entries]
    except FileNotFoundError:
        return
    for path in paths:
        with suppress(FileNotFoundError):
            _process_record(path)


def _missing_names(policy: Policy, root: str) -> list[str]:
    """Return missing names, relative to the root, protected by relative paths and whose parent exists."""
    found = []
    for path in protected_paths(policy, root, absolute=False):
        parent = os.path.dirname(path)
        if not is_within(path, [root]) or path == root or path.endswith(_NEVER):
            continue
        if os.path.lexists(path) or not os.path.isdir(parent):
            continue
        if os.path.basename(parent) != ".git" or os.path.exists(f"{parent}/HEAD"):
            found.append(os.path.relpath(path, root))
    return found


def _make(directory: int, name: str, content: bytes | None, *, give: bool) -> None:
    """Create a placeholder; with `give`, chown it to the directory's owner if running as root."""
    with _open_parent(directory, name) as (parent, last):
        try:
            if content is None:
                os.mkdir(last, 0o755, dir_fd=parent)
            else:
                fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent)
                os.write(fd, content)
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS):
                return  # it exists now, or is not permitted, and then neither to the session
            raise
        if give and os.geteuid() == 0:
            owner = os.fstat(parent)
            os.chown(last, owner.st_uid, owner.st_gid, dir_fd=parent, follow_symlinks=False)


def _placeholder_content(root: str, name: str) -> bytes | None:
    """Return the contents of a placeholder file; None for a directory."""
    return next((content for end, content in _FILES.items() if f"{root}/{name}".endswith(end)), None)


def _open_record(records: str, root: str) -> int:
    """Open the record of a directory with a shared lock."""
    make_private_directory(records)
    path = f"{records}/{hashlib.blake2b(os.fsencode(root), digest_size=16).hexdigest()}"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # it was just processed


def _lock(fd: int) -> None:
    """Take a shared lock on a directory. File systems without locks are accepted."""
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise OSError(errno.EAGAIN, "another program holds a lock on the directory") from None
            time.sleep(_LOCK_PAUSE_S)
        except OSError:
            return


def _process_record(path: str) -> None:
    record = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _try_lock_exclusive(record):
            return
        try:
            lines = [
                json.loads(line) for line in bounded_read.read_bounded(record, _MOST_RECORD_BYTES, path).splitlines()
            ]
        except ValueError:  # truncated by a full disk
            lines = []
        for root in {root for root, _ in lines}:
            if not _remove_names(root, [name for each, name in lines if each == root]):
                return
        os.unlink(path)
    finally:
        os.close(record)


def _remove_names(root: str, names: list[str]) -> bool:
    """Remove unchanged placeholders. Return False if another session needs them."""
    try:
        with _open_directory(root) as directory:
            if not _try_lock_exclusive(directory):
                return False
            for name in names:
                _remove_unchanged(directory, name, _placeholder_content(root, name))
    except OSError:  # it was deleted, or cannot be entered any more
        pass
    return True


def _try_lock_exclusive(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove_unchanged(directory: int, name: str, content: bytes | None) -> None:
    with suppress(OSError, bounded_read.Oversized), _open_parent(directory, name) as (parent, last):
        if content is None:
            os.rmdir(last, dir_fd=parent)
            return
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            same = stat.S_ISREG(os.fstat(fd).st_mode) and bounded_read.read_bounded(fd, len(content), name) == content
        finally:
            os.close(fd)
        if same:
            os.unlink(last, dir_fd=parent)


@contextmanager
def _open_directory(root: str) -> Iterator[int]:
    place = mounts.open_strictly(root)
    try:
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _open_parent(directory: int, name: str) -> Iterator[tuple[int, str]]:
    """Open the parent of a path below a directory, without following symlinks; yield it and the last name.

    Raises:
        OSError: a component is missing or a symlink
    """
    *above, last = name.split("/")
    fd = os.dup(directory)
    try:
        for each in above:
            fd, before = os.open(each, _DIRECTORY, dir_fd=fd), fd
            os.close(before)
        yield fd, last
    finally:
        os.close(fd)
