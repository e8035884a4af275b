"""Where things lie for a user: endpoint, state, config. Pure: the environment and the uid are given."""

from __future__ import annotations

import os.path
from collections.abc import Mapping

MAX_IPC_PATH = 99  # a socket path may have 107 bytes; the workers' socket beside ours ends in ".workers"


def runtime_dir(environ: Mapping[str, str], uid: int) -> str:
    """The user's own folder for sockets; to be created 0700. `REPLCTL_STATE_DIR` takes it along."""
    if state := environ.get("REPLCTL_STATE_DIR"):
        return os.path.join(os.path.abspath(state), "run")
    if xdg := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "replctl")
    return f"/tmp/replctl-{uid}"


def state_dir(environ: Mapping[str, str]) -> str:
    """The user's own folder for logs and lists of sessions."""
    if state := environ.get("REPLCTL_STATE_DIR"):
        return os.path.abspath(state)
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")
    return os.path.join(base, "replctl")


def config_file(environ: Mapping[str, str]) -> str:
    """The user's config file; it need not exist."""
    if named := environ.get("REPLCTL_CONFIG"):
        return os.path.abspath(named)
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return os.path.join(base, "replctl", "config.toml")


def missing_config_message(named_by: str, path: str) -> str:
    """The sentence for a config file that is named and not there: it is never taken for an empty one."""
    return (
        f"{named_by} names {path}, and there is no such file: make it, or leave that out. Without it "
        "all settings would be the defaults, and its guards and rules for agents would not hold"
    )


def default_endpoint(environ: Mapping[str, str], uid: int) -> str:
    """The user's own broker."""
    return "ipc://" + os.path.join(runtime_dir(environ, uid), "broker.sock")


def ipc_path(endpoint: str) -> str | None:
    """The socket file of an ipc endpoint, or None for another transport. Raises ValueError when it is too long."""
    if not endpoint.startswith("ipc://"):
        return None
    path = endpoint.removeprefix("ipc://")
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        raise ValueError(f"socket path longer than {MAX_IPC_PATH} bytes (give a shorter endpoint): {path}")
    return path
