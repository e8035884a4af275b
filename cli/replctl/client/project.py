"""The project that a directory belongs to; each project has its own default session."""

from __future__ import annotations

import os

from replctl.client.address import Address

MARKERS = (".git", "pyproject.toml", "package.json")


def project_of(directory: str) -> str | None:
    """Return the nearest ancestor with a project marker, else the directory itself; None if it does not exist.

    A home directory is never the project of its subdirectories: they would all share one session, without a working
    directory, because the sandbox denies home directories.
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
    """Return the project to send to a broker; None for a broker that may run on another machine."""
    return project_of(directory) if directory is not None and address.endpoint.startswith("ipc://") else None
