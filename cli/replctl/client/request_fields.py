"""Library arguments as request fields: seconds to milliseconds, mappings to lists. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FOREVER_MS = 1 << 53  # largest integer that every JSON parser represents exactly


def milliseconds(seconds: float | None) -> int | None:
    """Convert seconds to the protocol's milliseconds; any positive time is at least 1 ms, infinity a very long time."""
    if seconds is None:
        return None
    most = round(min(seconds * 1000, _FOREVER_MS))
    return max(1, most) if seconds > 0 else most


def env_list(env: Mapping[str, str] | None) -> list[str] | None:
    """Return environment variables as a list of `NAME=value`."""
    return [f"{name}={value}" for name, value in env.items()] if env else None


def eval_fields(
    code: str,
    session: str | None,
    *,
    timeout: float | None = None,
    wait: float | None = None,
    silent: bool = False,
    create: bool = True,
    ephemeral: bool = False,
    allow_stdin: bool = True,
    store_history: bool = True,
    runtime: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    expect_epoch: int | None = None,
    idempotency_key: str | None = None,
    mime: Sequence[str] = (),
    cwd_needed: bool = True,
    approval: str | None = None,
    traceparent: str | None = None,
) -> dict[str, Any]:
    """Return the fields of `eval`, without those at their default."""
    return {
        "code": code,
        "session": None if ephemeral else session,
        "if_missing": "create" if create and session is not None and not ephemeral else None,
        "timeout_ms": milliseconds(timeout),
        "wait_ms": milliseconds(wait),
        "silent": silent or None,
        "allow_stdin": None if allow_stdin else False,
        "store_history": None if store_history else False,
        "runtime": runtime,
        "cwd": cwd,
        "cwd_needed": None if cwd_needed else False,
        "env": env_list(env),
        "expect_epoch": expect_epoch,
        "idempotency_key": idempotency_key,
        "mime": list(mime) or None,
        "approval": approval,
        "traceparent": traceparent,
    }


def new_fields(
    name: str | None, runtime: str | None, cwd: str | None, env: Mapping[str, str] | None, reuse: bool
) -> dict[str, Any]:
    """Return the fields of `new-session`."""
    return {
        "name": name,
        "runtime": runtime,
        "cwd": cwd,
        "env": env_list(env),
        "if_exists": "reuse" if reuse else None,
    }


def read_fields(
    session: str,
    eval_id: int,
    wait: float | None = None,
    offset: int = 0,
    stream: str = "both",
    max_bytes: int | None = None,
    grep: str | None = None,
) -> dict[str, Any]:
    """Return the fields of `read`."""
    return {
        "session": session,
        "eval_id": eval_id,
        "wait_ms": milliseconds(wait),
        "offset": offset or None,
        "stream": None if stream == "both" else stream,
        "max_bytes": max_bytes,
        "grep": grep,
    }


def load_fields(
    file: str, session: str | None, reload: bool, timeout: float | None, wait: float | None
) -> tuple[str, dict[str, Any]]:
    """Return the operation that runs a file, and its fields."""
    fields = {"file": file, "session": session, "timeout_ms": milliseconds(timeout), "wait_ms": milliseconds(wait)}
    return "reload-file" if reload else "load-file", fields


def package_fields(
    action: str, packages: Sequence[str], session: str, path: str | None, approval: str | None = None
) -> dict[str, Any]:
    """Return the fields of `env` for a package action."""
    fields = {"session": session, "action": action, "packages": list(packages) or None, "path": path}
    return {**fields, "approval": approval}
