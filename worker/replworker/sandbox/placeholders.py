"""Names in a workspace that a session must not make: each is held by something empty, while sessions work there.

A mount protects what is there, and needs something to be mounted on. So what is missing is made, as empty as can be: a
folder nearly always, which no tool reads and git does not list. The entries go with the last session that works in
the folder: sessions share a lock on it, also those of other brokers, and a record says what to take away. The kernel
gives up the lock with its worker, so that the record of a broker that was killed is worked off by the next.
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

# A folder of these names would be taken for what it is not. "." means the repository itself, as no file does.
_FILES = {"/.git/commondir": b".\n", "/.git/config.worktree": b""}
_NEVER = ("/.git/config", "/.git/rebase-merge", "/.git/rebase-apply")  # even empty they mean something to git
_MOST_RECORD_BYTES = 1024 * 1024
_LOCK_S, _LOCK_PAUSE_S = 1.0, 0.01
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create_placeholders(policy: Policy, root: str, records: str, rights: Rights | None = None) -> tuple[int, ...]:
    """Make what is missing in `root`, with these rights; descriptors to be kept open for as long as it is needed.

    Raises OSError.
    """
    if policy.profile != "workspace-write":
        return ()
    with ExitStack() as stack:
        record = _open_record(records, root)
        stack.callback(os.close, record)
        with acting_as(rights), _open_directory(root) as folder:
            _lock(folder)
            for name in _missing_names(policy, root):
                os.write(record, json.dumps([root, name]).encode() + b"\n")
                _make(folder, name, _placeholder_content(root, name), give=rights is None)
            lock = os.dup(folder)
        stack.pop_all()
    return lock, record


def remove_placeholders(records: str) -> None:
    """Take away what no session needs any more."""
    try:
        with os.scandir(records) as entries:
            paths = [entry.path for entry in entries]
    except FileNotFoundError:
        return
    for path in paths:
        with suppress(FileNotFoundError):
            _process_record(path)


def _missing_names(policy: Policy, root: str) -> list[str]:
    """What is protected by a relative path and not there, as paths below the root; whose folder is there."""
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


def _make(folder: int, name: str, content: bytes | None, *, give: bool) -> None:
    """`give`: to the folder's owner, where we are root."""
    with _open_parent(folder, name) as (parent, last):
        try:
            if content is None:
                os.mkdir(last, 0o755, dir_fd=parent)
            else:
                fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent)
                os.write(fd, content)
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS):
                return  # it is there by now; or we may not, and then the session may neither
            raise
        if give and os.geteuid() == 0:
            owner = os.fstat(parent)
            os.chown(last, owner.st_uid, owner.st_gid, dir_fd=parent, follow_symlinks=False)


def _placeholder_content(root: str, name: str) -> bytes | None:
    """What the file of this name holds; None for a folder."""
    return next((content for end, content in _FILES.items() if f"{root}/{name}".endswith(end)), None)


def _open_record(records: str, root: str) -> int:
    """The record of a folder, locked for us and others who need what it lists."""
    make_private_directory(records)
    path = f"{records}/{hashlib.blake2b(os.fsencode(root), digest_size=16).hexdigest()}"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # it was just worked off


def _lock(fd: int) -> None:
    """Share the lock on a folder. A file system that has none is no reason to refuse."""
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise OSError(errno.EAGAIN, "another program holds a lock on the folder") from None
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
        except ValueError:  # cut off by a full disk
            lines = []
        for root in {root for root, _ in lines}:
            if not _remove_names(root, [name for each, name in lines if each == root]):
                return
        os.unlink(path)
    finally:
        os.close(record)


def _remove_names(root: str, names: list[str]) -> bool:
    """Take away what is still as we made it; False when somebody else's session needs it."""
    try:
        with _open_directory(root) as folder:
            if not _try_lock_exclusive(folder):
                return False
            for name in names:
                _remove_unchanged(folder, name, _placeholder_content(root, name))
    except OSError:  # it is gone, or not to be entered any more
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


def _remove_unchanged(folder: int, name: str, content: bytes | None) -> None:
    with suppress(OSError, bounded_read.Oversized), _open_parent(folder, name) as (parent, last):
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
def _open_parent(folder: int, name: str) -> Iterator[tuple[int, str]]:
    """The folder that a path below another ends in, and its last name; no symlink is followed. Raises OSError."""
    *above, last = name.split("/")
    fd = os.dup(folder)
    try:
        for each in above:
            fd, before = os.open(each, _FOLDER, dir_fd=fd), fd
            os.close(before)
        yield fd, last
    finally:
        os.close(fd)
