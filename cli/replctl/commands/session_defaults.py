"""What a session that is created gets from the place it was asked for: its folder and its environment."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click


def directory_for_new(flag: str | None, endpoint: str) -> str | None:
    """The folder for a new session: the one asked for, else the caller's own. A broker elsewhere has its own."""
    if flag is not None:
        return os.path.abspath(flag)
    if not endpoint.startswith("ipc://"):
        return None
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return None


def runtime_for_new(flag: str | None, folder: str | None) -> tuple[str | None, str | None]:
    """What a new session is to run, and the environment that was found for it in its folder, if that is why."""
    if flag is not None:
        return (os.path.abspath(flag) if "/" in flag else flag), None
    found = None if folder is None else os.path.join(folder, ".venv")
    if found is not None and os.path.isfile(os.path.join(found, "bin/python")):
        return found, found
    return None, None


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """`K=V` as given; a usage error for anything else."""
    env = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--env wants K=V: {pair!r}")
        env[name] = value
    return env
