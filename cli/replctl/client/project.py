"""The project that a directory belongs to: what the default session is one of."""

from __future__ import annotations

import os

from replctl.client.address import Address

MARKERS = (".git", "pyproject.toml", "package.json")


def project_of(directory: str) -> str | None:
    """The nearest ancestor with one of the markers, else the directory itself; None when that is gone.

    A home directory is nobody's project but its own: everything below it would meet in one session otherwise, and that
    would have no directory, because the sandbox lets no home in.
    """
    try:
        start = os.path.realpath(directory, strict=True)
        home = os.path.realpath(os.path.expanduser("~"))
    except OSError:
        return None
    at = start
    while at not in (home, "/"):
        if any(os.path.exists(os.path.join(at, marker)) for marker in MARKERS):
            return at
        at = os.path.dirname(at)
    return start


def project_at(address: Address, directory: str | None) -> str | None:
    """The project to send to a broker: none to one that may be on another machine, where directories are others."""
    return project_of(directory) if directory is not None and address.endpoint.startswith("ipc://") else None
