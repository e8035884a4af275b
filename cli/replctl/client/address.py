"""Broker address, a check whether something listens there, and the project that a directory belongs to."""

from __future__ import annotations

import _socket  # importing `socket` costs 3 ms, and an ipc probe does not need it
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from replctl.client.errors import ReplError
from replwire import paths

PROJECT_MARKERS = (".git", "pyproject.toml", "package.json")
PROBE_SECONDS = 2.0  # a listener accepts at once; this allows two very slow round trips


class Address(NamedTuple):
    """An endpoint and its source: `flag`, `REPLCTL_ENDPOINT`, the config file's path, or `default`."""

    endpoint: str
    source: str


def resolve(flag: str | None, environ: Mapping[str, str], uid: int) -> Address:
    """Return the endpoint to connect to.

    Raises:
        ReplError: `invalid-request` for an unusable setting, or if `REPLCTL_CONFIG` names a missing file, which might
            set another endpoint.
    """
    if flag:
        return Address(_client_endpoint(flag), "flag")
    if named := environ.get("REPLCTL_ENDPOINT"):
        return Address(_client_endpoint(named), "REPLCTL_ENDPOINT")
    path = paths.config_file(environ)
    given = environ.get("REPLCTL_CONFIG")
    if (given or os.path.exists(path)) and (named := _from_file(path, environ)):
        return Address(absolute_endpoint(named), path)
    return Address(absolute_endpoint(paths.default_endpoint(environ, uid)), "default")


def _client_endpoint(endpoint: str) -> str:
    """Return an endpoint for clients: one of a broker, or of a broker over ssh."""
    if not endpoint.startswith("ssh://"):
        return absolute_endpoint(endpoint)
    from replctl.client.ssh import parse_ssh  # few users have brokers elsewhere

    parse_ssh(endpoint)
    return endpoint


def _from_file(path: str, environ: Mapping[str, str]) -> str:
    from replwire.config import ConfigError, load  # imported only if there is a config file

    try:
        with open(path, encoding="utf-8") as file:
            return load(file.read(), path, environ).config.broker.endpoint
    except FileNotFoundError:
        raise ReplError("invalid-request", paths.missing_config_message("REPLCTL_CONFIG", path)) from None
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ReplError("invalid-request", f"invalid config: {error}") from None


def absolute_endpoint(endpoint: str, *, is_listener: bool = False) -> str:
    """Return the endpoint with an absolute socket path.

    Args:
        endpoint: `ipc://PATH` or `tcp://HOST:PORT`.
        is_listener: Allow port 0, which takes a free one.

    Raises:
        ReplError: `invalid-request` for an unknown form.
    """
    try:
        path = paths.ipc_path(endpoint)
    except ValueError as error:
        raise ReplError("invalid-request", str(error)) from None
    if path is None:
        if not endpoint.startswith("tcp://"):
            raise ReplError("invalid-request", f"not an endpoint (ipc://PATH or tcp://HOST:PORT): {endpoint}")
        _parse_host_port(endpoint, lowest_port=0 if is_listener else 1)
        return endpoint
    if not path:
        raise ReplError("invalid-request", "endpoint without a path: ipc://")
    return "ipc://" + (path if path.startswith("@") else os.path.abspath(path))


def current_directory(endpoint: str) -> str | None:
    """Return the caller's directory, for new sessions; None for a broker on another machine."""
    if not endpoint.startswith("ipc://"):
        return None
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None


def is_listening(endpoint: str) -> bool:
    """Return True if something accepts connections there, tested with a plain connect before ZeroMQ is involved.

    Raises:
        ReplError: `no-broker` if the test fails: no permission, unknown host, no reply in time.
    """
    if endpoint.startswith("ssh://"):
        return True  # only a login would tell
    path = paths.ipc_path(endpoint)
    try:
        if path is None:
            import socket

            with socket.create_connection(_parse_host_port(endpoint), PROBE_SECONDS):
                return True
        probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            probe.settimeout(PROBE_SECONDS)
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
            return True
        finally:
            probe.close()
    except (ConnectionRefusedError, FileNotFoundError, ConnectionResetError):
        return False
    except BlockingIOError:  # the backlog is full: listening, but busy
        return True
    except OSError as error:
        raise ReplError("no-broker", f"cannot reach {endpoint}: {error.strerror or error}") from None


def directory_problem(directory: str, uid: int) -> str | None:
    """Return the reason why sockets in this directory cannot be trusted, or None."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return None
    except OSError as error:  # `su` keeps the caller's XDG_RUNTIME_DIR
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is not a directory"
    if found.st_uid not in (uid, 0):
        return f"{directory} belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o022:
        return f"others may write to {directory} (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _parse_host_port(endpoint: str, lowest_port: int = 1) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not lowest_port <= int(port) < 65536:
        raise ReplError("invalid-request", f"not tcp://HOST:PORT: {endpoint}")
    return host.strip("[]"), int(port)


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
        if any(os.path.exists(os.path.join(at, marker)) for marker in PROJECT_MARKERS):
            return at
        at = os.path.dirname(at)
    return start


def project_at(address: Address, directory: str | None) -> str | None:
    """Return the project to send to a broker; None for a broker that may run on another machine."""
    return project_of(directory) if directory is not None and address.endpoint.startswith("ipc://") else None
