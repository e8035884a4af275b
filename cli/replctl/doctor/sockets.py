"""Checks of directories and sockets: access, and listeners."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from replctl.client.address import directory_problem, is_listening
from replctl.client.errors import ReplError
from replctl.doctor.finding import Finding, fail, ok, warn
from replwire.keys import InvalidKey, KeyStore
from replwire.loopback import is_loopback_host
from replwire.paths import ipc_path


def directory(name: str, path: str, uid: int) -> Iterator[Finding]:
    """Check a directory that must be private; a broker refuses any other."""
    if (fault := directory_problem(path, uid)) is not None:
        yield fail(name, fault, "others could create sockets or files there", f"chown {uid} {path}; chmod 700 {path}")
        return
    try:
        found = os.stat(path)
    except FileNotFoundError:
        yield ok(name, f"{path} does not exist yet; a broker creates it")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        cause = "others may enter it, so a broker refuses to start"
        fix = f"chmod 700 {path} if only replctl uses it, else choose a private directory"
        yield fail(name, f"{path} has mode {mode:04o}", cause, fix)
    elif found.st_uid != uid:
        yield warn(
            name,
            f"{path} belongs to uid {found.st_uid}",
            "its broker is another user's",
            f"run this as uid {found.st_uid}",
        )
    else:
        yield ok(name, f"{path}, mode {mode:04o}")


def listener(endpoint: str, state_dir: str, uid: int) -> Iterator[Finding]:
    """Check the place where a broker would listen."""
    path = ipc_path(endpoint)
    if path is None:
        yield from _check_tcp(endpoint, state_dir)
        return
    if path.startswith("@"):
        yield warn("sockets", endpoint, "any user of this machine may connect to an abstract socket", "use a path")
        return
    if _is_shared(endpoint, os.path.dirname(path), uid):
        yield ok("sockets", f"{path}, shared: a broker listens there, and others may enter its directory")
    else:
        yield from directory("sockets", os.path.dirname(path), uid)
    yield from _check_file(path, uid)


def _is_shared(endpoint: str, directory: str, uid: int) -> bool:
    """Return True for a service's socket in a directory like /run, which a broker receives and does not create."""
    try:
        mode = os.stat(directory).st_mode
        return bool(mode & 0o077) and directory_problem(directory, uid) is None and is_listening(endpoint)
    except (OSError, ReplError):
        return False


def _check_file(path: str, uid: int) -> Iterator[Finding]:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISSOCK(found.st_mode):
        yield fail("sockets", f"{path} is not a socket", "a broker cannot listen there", f"move {path} away")
    elif found.st_uid not in (uid, 0):
        yield fail(
            "sockets",
            f"{path} belongs to uid {found.st_uid}",
            "it is not your broker's socket",
            f"ask that user, or rm {path}",
        )


def _check_tcp(endpoint: str, state_dir: str) -> Iterator[Finding]:
    try:
        pair = KeyStore(state_dir).server()
    except InvalidKey as error:
        yield fail(
            "sockets",
            str(error),
            "a broker cannot start at tcp:// with this key",
            "create a new one: replctl keys new NAME",
        )
        return
    if pair is not None or is_loopback_host(endpoint.removeprefix("tcp://").rpartition(":")[0]):
        yield ok("sockets", f"{endpoint}, {'clients need keys' if pair else 'this machine only'}")
    else:
        cause = "beyond loopback clients need keys, and a broker refuses to start without any"
        yield fail(
            "sockets", f"{endpoint}, no keys in {state_dir}", cause, "replctl keys new NAME, or listen on 127.0.0.1"
        )


def secrets(state_dir: str) -> Iterator[Finding]:
    """Check files with secrets that others could read."""
    for name in ("keys/server.toml", "audit.ndjson", "history"):
        path = os.path.join(state_dir, name)
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if mode & 0o077:
            yield warn("secrets", f"{path} has mode {mode:04o}", "others may read or write it", f"chmod 600 {path}")
