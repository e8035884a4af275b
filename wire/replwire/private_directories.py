"""Directories that nobody but their owner may enter."""

from __future__ import annotations

import os


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents, each with mode 0700.

    `Path.mkdir(parents=True)` and `os.makedirs` apply their mode to the last directory only: the parents get the
    umask's.

    Args:
        path: The directory. One that exists keeps its mode.

    Raises:
        OSError: It cannot be created, or something there is not a directory.
    """
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(parent):  # nothing more can be done: the path is empty, or was removed just now
            raise
        make_private_directory(parent)
        make_private_directory(path)
    except OSError:  # the kernel may name another reason first, as a read-only file system
        if not os.path.isdir(path):
            raise
