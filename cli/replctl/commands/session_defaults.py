"""Defaults for a new session: working directory, runtime and environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click


def directory_for_new(flag: str | None, endpoint: str) -> str | None:
    """Return the directory for a new session: the flag, else the caller's; None for a remote broker."""
    if flag is not None:
        return os.path.abspath(flag)
    if not endpoint.startswith("ipc://"):
        return None
    try:
        return os.getcwd()
    except FileNotFoundError:  # the current directory was deleted
        return None


def runtime_for_new(flag: str | None, folder: str | None) -> tuple[str | None, str | None]:
    """Return the runtime for a new session, and the environment found in its directory if that determined it."""
    if flag is not None:
        return (os.path.abspath(flag) if "/" in flag else flag), None
    found = None if folder is None else os.path.join(folder, ".venv")
    if found is not None and os.path.isfile(os.path.join(found, "bin/python")):
        return found, found
    return None, None


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `K=V`; raises a usage error for anything else."""
    env = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--env needs K=V, not {pair!r}")
        env[name] = value
    return env
