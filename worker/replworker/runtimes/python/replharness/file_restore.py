"""The way back to a list of files."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from . import SEALED
from .file_tree import TreeWalk, open_directory, open_file, signature
from .file_versions import FileVersion, sentences

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .file_versions import FileList, FileVersions

__builtins__ = SEALED

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NEW = b".replctl-restored"


def restore(versions: FileVersions, number: int) -> List[str]:
    """Make the directory what it was at a list; return what is not, in sentences. Raises OSError, KeyError."""
    return _Restoring(versions, versions.lists[number]).run(number)


class _Restoring:
    def __init__(self, versions: FileVersions, target: FileList) -> None:
        self._versions = versions
        self._target = target
        self._present: Dict[bytes, os.stat_result] = {}
        self._walk = self._walk_present()
        self._result = dict(target)
        self._root = open_directory(versions.root)

    def _walk_present(self) -> TreeWalk:
        present: Dict[bytes, os.stat_result] = {}
        walk = TreeWalk(lambda _, __, path, status: present.__setitem__(path, status))
        walk.run(self._versions.root)
        self._present = present
        return walk

    def run(self, number: int) -> List[str]:
        try:
            changed = self._changed()
            for path in changed:
                self._try(self._put_back, path)
            if any(os.path.basename(path) == b".gitignore" for path in changed):
                self._walk_present()  # other files are ignored than just now
            for path in sorted(self._present.keys() - self._target.keys(), reverse=True):
                self._try(self._remove, path)
        finally:
            os.close(self._root)
        self._versions.lists[number] = self._versions.latest = self._result
        return sentences(self._walk.skipped)

    def _changed(self) -> List[bytes]:
        """Return the paths that are not as in the list, parents first."""
        present = self._present
        return sorted(
            path
            for path, wanted in self._target.items()
            if path not in present or not wanted.is_sure or signature(present[path]) != wanted.status
        )

    def _try(self, action: Any, path: bytes) -> None:
        try:
            try:
                directory = self._open_parent(path)
            except OSError as exc:
                if action == self._remove and exc.errno in _MISSING:
                    return  # with the directory that it was in
                raise
            try:
                action(directory, os.path.basename(path), path)
            finally:
                os.close(directory)
        except OSError as exc:
            self._walk.skip(exc.strerror or str(exc), path)

    def _open_parent(self, path: bytes) -> int:
        fd = os.dup(self._root)
        for part in path.split(b"/")[:-1]:
            try:
                inner = open_directory(part, fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _put_back(self, directory: int, name: bytes, path: bytes) -> None:
        wanted = self._target[path]
        mode = wanted.status[0]
        present = _status_of(directory, name)
        if present is not None and stat.S_IFMT(present.st_mode) != stat.S_IFMT(mode):
            _remove_tree(directory, name, present)
            present = None
        if stat.S_ISDIR(mode):
            if present is None:
                os.mkdir(name, 0o700, dir_fd=directory)
            _set_mode(directory, name, mode)
        elif stat.S_ISLNK(mode):
            self._put_link(directory, name, wanted, present)
        elif stat.S_ISREG(mode) and wanted.content is not None:
            self._put_file(directory, name, wanted, present)
        elif present is None or signature(present) != wanted.status:
            self._walk.skip("what was not kept is not restored", path)
            return
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        self._result[path] = FileVersion(signature(status), wanted.content, wanted.at, wanted.link, False)

    @staticmethod
    def _put_link(directory: int, name: bytes, wanted: Any, present: Any) -> None:
        if present is not None:
            if os.readlink(name, dir_fd=directory) == wanted.link:
                return
            os.unlink(name, dir_fd=directory)
        if wanted.link is not None:
            os.symlink(wanted.link, name, dir_fd=directory)

    @staticmethod
    def _put_file(directory: int, name: bytes, wanted: Any, present: Any) -> None:
        """Replace a file as a whole, unless only its mode or its times are others."""
        mode, size, modified = wanted.status[0], wanted.status[1], wanted.status[2]
        if present is not None and present.st_size == size:
            fd = open_file(name, directory)
            try:
                if wanted.content.equals(fd, wanted.at, size):
                    if stat.S_IMODE(present.st_mode) != stat.S_IMODE(mode):
                        os.fchmod(fd, stat.S_IMODE(mode))
                    return
            finally:
                os.close(fd)
        with suppress(FileNotFoundError):  # of a restore that was killed
            os.unlink(_NEW, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_NEW, flags, 0o600, dir_fd=directory)
        try:
            for piece in wanted.content.read(wanted.at, size):
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, stat.S_IMODE(mode))
            os.utime(fd, ns=(modified, modified))
            os.rename(_NEW, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(_NEW, dir_fd=directory)
            raise
        finally:
            os.close(fd)

    def _remove(self, directory: int, name: bytes, _: bytes) -> None:
        status = _status_of(directory, name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
            return
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as exc:
            if exc.errno != errno.ENOTEMPTY:  # what the project ignores stays
                raise


def _status_of(directory: int, name: bytes) -> Any:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _set_mode(directory: int, name: bytes, mode: int) -> None:
    fd = open_directory(name, directory)
    try:
        os.fchmod(fd, stat.S_IMODE(mode))
    finally:
        os.close(fd)


def _remove_tree(directory: int, name: bytes, status: os.stat_result) -> None:
    """Remove what is in the place of something else; no symbolic link is followed."""
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    fd = open_directory(name, directory)
    try:
        with os.scandir(fd) as entries:
            found = [os.fsencode(entry.name) for entry in entries]
        for each in found:
            inner = _status_of(fd, each)
            if inner is not None:
                _remove_tree(fd, each, inner)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=directory)
