"""Layers on disk: the packages of each session, in the broker's state directory.

::

    packages/layers/SESSION/KEY/layer.json   requested packages, versions, number of the generation
    packages/layers/SESSION/KEY/g3           the newest generation
    packages/mounts/PID-*/g2, g3               what one worker's interpreter sees, read-only: hard links
    packages/shared                          downloads, and jobs of installers

An interpreter may still import from an older generation after a newer one is published, so its worker's directory has
both; the layer itself has only the newest. `KEY` names the interpreter, since packages of one may not fit another.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from replwire.private_directories import make_private_directory

_DIST_INFO = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9._+!]+)\.dist-info")
_RECORD = "layer.json"
JOURNAL_FILE = "journal"  # path of the journal that lists the session while it is open


class LayerRecord(msgspec.Struct, frozen=True, rename="kebab"):
    """Contents of one generation: what was requested, and what is installed."""

    generation: int
    requirements: list[str] = []
    pins: dict[str, str] = {}
    bytes: int = 0


class PackagePaths:
    """Paths of all layers of a broker's state directory."""

    def __init__(self, state_dir: str) -> None:
        self.root = f"{state_dir}/packages"
        self.shared = f"{self.root}/shared"
        self.layers = f"{self.root}/layers"
        self.mounts = f"{self.root}/mounts"

    def create_mount(self) -> str:
        """Create the directory that this worker's interpreter will see."""
        make_private_directory(self.root)
        make_private_directory(self.mounts)
        path = tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.mounts)  # `remove_stale` finds dead workers by it
        os.chmod(path, 0o755)  # a root broker's sessions are other users; the directories above are closed to them
        return path


class PackageLayer:
    """The layer of one session and interpreter, and the directory where its interpreter sees it.

    Args:
        paths: the broker's paths
        session: id of the session
        executable: the interpreter
        mount: the worker's directory
        seen_as: where the interpreter sees that
    """

    def __init__(self, paths: PackagePaths, session: str, executable: str, mount: str, seen_as: str) -> None:
        self._home = f"{paths.layers}/{session}"
        self._directory = f"{self._home}/{hashlib.blake2b(executable.encode(), digest_size=6).hexdigest()}"
        self._mount = mount
        self._seen_as = seen_as
        self.record = self._read()

    @property
    def current(self) -> str | None:
        """Directory of the newest generation, or None."""
        return f"{self._directory}/g{self.record.generation}" if self.record.generation else None

    def _read(self) -> LayerRecord:
        try:
            return msgspec.json.decode(Path(self._directory, _RECORD).read_bytes(), type=LayerRecord)
        except FileNotFoundError:
            return LayerRecord(0)

    def show(self) -> str | None:
        """Show the newest generation to the interpreter; return its path there, None if there is none."""
        if self.current is None:
            return None
        name = os.path.basename(self.current)
        if not os.path.exists(f"{self._mount}/{name}"):
            link_tree(self.current, f"{self._mount}/{name}")
        return f"{self._seen_as}/{name}"

    def publish(self, target: str, requirements: list[str], pins: dict[str, str], size: int, journal: str) -> str:
        """Make a directory the newest generation; return its path for the interpreter.

        Raises:
            OSError: it cannot be moved or linked
        """
        record = LayerRecord(self.record.generation + 1, requirements, pins, size)
        older = self.current
        make_private_directory(self._directory)
        Path(self._home, JOURNAL_FILE).write_text(journal)
        path = f"{self._directory}/g{record.generation}"
        shutil.rmtree(path, ignore_errors=True)  # of a worker that was killed here
        os.rename(target, path)
        self._write(record)
        shown = self.show()
        assert shown is not None
        if older is not None:
            shutil.rmtree(older, ignore_errors=True)
        return shown

    def save_requirements(self, requirements: list[str]) -> None:
        """Save what is requested, where the newest generation fulfils it.

        Raises:
            OSError: it cannot be written
        """
        if self.record.generation and requirements != self.record.requirements:
            self._write(msgspec.structs.replace(self.record, requirements=requirements))

    def _write(self, record: LayerRecord) -> None:
        begun = Path(self._directory, f"{_RECORD}.{os.getpid()}")
        begun.write_bytes(msgspec.json.encode(record))
        os.rename(begun, f"{self._directory}/{_RECORD}")
        self.record = record

    def copy_from(self, paths: PackagePaths, session: str, journal: str) -> None:
        """Begin with the packages of another session, if it has any for the same interpreter.

        Raises:
            OSError: they cannot be linked
        """
        source = f"{paths.layers}/{session}/{os.path.basename(self._directory)}"
        if self.current is None and os.path.isdir(source):
            make_private_directory(self._home)
            Path(self._home, JOURNAL_FILE).write_text(journal)
            link_tree(source, self._directory)
            self.record = self._read()


def link_tree(source: str, target: str) -> None:
    """Copy a directory with hard links, or as a whole where the file system has none. Symlinks stay symlinks.

    Raises:
        OSError: it cannot be copied
    """
    os.mkdir(target, 0o755)
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                link_tree(entry.path, path)
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            else:
                try:
                    os.link(entry.path, path, follow_symlinks=False)
                except OSError:
                    shutil.copy2(entry.path, path, follow_symlinks=False)


def installed_versions(target: str) -> dict[str, str]:
    """Return the packages installed in a directory with their versions, sorted by name."""
    found = (_DIST_INFO.fullmatch(name) for name in os.listdir(target))
    return dict(sorted((each[1], each[2]) for each in found if each is not None))


def tree_bytes(path: str) -> int:
    """Return the size of all files of a directory."""
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                total += tree_bytes(entry.path)
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
