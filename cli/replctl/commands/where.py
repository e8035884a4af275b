"""What a session that is created gets from the place it was asked for: its folder and its environment."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click


def folder_to_send(flag: str | None, endpoint: str) -> str | None:
    """The folder for a new session: the one asked for, else the caller's own. A broker elsewhere has its own."""
    if flag is not None:
        return os.path.abspath(flag)
    if not endpoint.startswith("ipc://"):
        return None
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return None


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """`K=V` as given; a usage error for anything else."""
    env = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--env wants K=V: {pair!r}")
        env[name] = value
    return env
