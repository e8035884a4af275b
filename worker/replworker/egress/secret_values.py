"""Values of secrets, in the egress proxy alone: read once, before it gives up its rights."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from replwire.secret_entries import SecretEntry

_COMMAND_S = 20.0
_MIN_BYTES, _MAX_BYTES = 6, 16 * 1024


class SecretUnavailable(Exception):
    """A secret that cannot be read. The message never has its value."""


def read_values(secrets: Sequence[SecretEntry], environ: Mapping[str, str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read every secret. Return the values by name, and why the others have none."""
    values: dict[str, bytes] = {}
    problems: dict[str, str] = {}
    for entry in secrets:
        try:
            values[entry.name] = _checked(_read(entry, environ))
        except SecretUnavailable as error:
            problems[entry.name] = str(error)
    return values, problems


def _read(entry: SecretEntry, environ: Mapping[str, str]) -> bytes:
    if entry.env:
        if entry.env not in environ:
            raise SecretUnavailable(f"the broker has no environment variable {entry.env}")
        return os.fsencode(environ[entry.env])
    if entry.file:
        try:
            with open(entry.file, "rb") as file:
                return file.read(_MAX_BYTES + 2)
        except OSError as error:
            raise SecretUnavailable(f"{entry.file}: {error.strerror}") from None
    return _run(entry.command, environ)


def _run(command: list[str], environ: Mapping[str, str]) -> bytes:
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise SecretUnavailable(f"{command[0]} took longer than {_COMMAND_S:g} s") from None
    except OSError as error:
        raise SecretUnavailable(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise SecretUnavailable(f"{command[0]} exited with code {done.returncode}")
    return done.stdout


def _checked(data: bytes) -> bytes:
    value = data.removesuffix(b"\n").removesuffix(b"\r")
    if not _MIN_BYTES <= len(value) <= _MAX_BYTES:
        raise SecretUnavailable(f"its value has {len(value)} bytes, and not {_MIN_BYTES} to {_MAX_BYTES}")
    if any(byte < 32 or byte > 126 for byte in value):
        raise SecretUnavailable("its value has bytes that no header may have")
    return value
