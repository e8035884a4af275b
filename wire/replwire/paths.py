"""Per-user paths: endpoint, state, config. Pure: environment and uid are arguments."""

from __future__ import annotations

import os.path
from collections.abc import Mapping

MAX_IPC_PATH = 99  # sun_path holds 107 bytes; the workers' socket beside it ends in ".workers"


def runtime_dir(environ: Mapping[str, str], uid: int) -> str:
    """Return the user's directory for sockets, created with mode 0700. `REPLCTL_STATE_DIR` moves it as well."""
    if state := environ.get("REPLCTL_STATE_DIR"):
        return os.path.join(os.path.abspath(state), "run")
    if xdg := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "replctl")
    return f"/tmp/replctl-{uid}"


def state_dir(environ: Mapping[str, str]) -> str:
    """Return the user's directory for logs and session lists."""
    if state := environ.get("REPLCTL_STATE_DIR"):
        return os.path.abspath(state)
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")
    return os.path.join(base, "replctl")


def config_file(environ: Mapping[str, str]) -> str:
    """Return the user's config file, which need not exist."""
    if named := environ.get("REPLCTL_CONFIG"):
        return os.path.abspath(named)
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return os.path.join(base, "replctl", "config.toml")


def missing_config_message(named_by: str, path: str) -> str:
    """Return the message for a missing config file. A missing file is never treated as empty."""
    return (
        f"{named_by} names {path}, which does not exist: create it or unset that. Without the file "
        "all settings would have defaults, and its access rules would not apply"
    )


def default_endpoint(environ: Mapping[str, str], uid: int) -> str:
    """Return the endpoint of the user's own broker."""
    return "ipc://" + os.path.join(runtime_dir(environ, uid), "broker.sock")


def ipc_path(endpoint: str) -> str | None:
    """Return the socket file of an ipc endpoint, or None for another transport.

    Raises:
        ValueError: the path is too long for a socket
    """
    if not endpoint.startswith("ipc://"):
        return None
    path = endpoint.removeprefix("ipc://")
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        raise ValueError(f"socket path longer than {MAX_IPC_PATH} bytes (give a shorter endpoint): {path}")
    return path
