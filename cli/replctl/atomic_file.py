"""Replacement of a whole file, so that readers see the old text or the new one."""

from __future__ import annotations

import os
import tempfile

_NEW_MODE = 0o600


def write_atomically(path: str, text: str, mode: int | None = None) -> None:
    """Write a file, with its directory if that is missing.

    Args:
        path: The file.
        text: Its new text.
        mode: Its mode; None keeps that of an existing file, and means 0600 for a new one.

    Raises:
        OSError: The file cannot be written; the old text is kept.
    """
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    if mode is None:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else _NEW_MODE
    file = tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=directory, delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise
