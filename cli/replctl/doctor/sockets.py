"""Folders and sockets: who may come to them, and who listens."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from replctl.client.address import directory_problem, is_listening
from replctl.client.errors import ReplError
from replctl.doctor.finding import Finding, fail, ok, warn
from replwire.keys import InvalidKey, KeyStore
from replwire.paths import ipc_path

_LOOPBACK = ("127.", "localhost", "[::1]")


def directory(name: str, path: str, uid: int) -> Iterator[Finding]:
    """A folder that must be ours alone; a broker refuses another."""
    if (fault := directory_problem(path, uid)) is not None:
        yield fail(
            name, fault, "others could put their own socket or files there", f"chown {uid} {path}; chmod 700 {path}"
        )
        return
    try:
        found = os.stat(path)
    except FileNotFoundError:
        yield ok(name, f"{path} is not there yet; a broker makes it")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        cause = "others may enter it: a broker refuses to start"
        mend = f"chmod 700 {path}, when it is replctl's alone; else name a place in a directory that is"
        yield fail(name, f"{path} has mode {mode:04o}", cause, mend)
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
    """The place where a broker would listen, by its kind."""
    path = ipc_path(endpoint)
    if path is None:
        yield from _check_tcp(endpoint, state_dir)
        return
    if path.startswith("@"):
        yield warn("sockets", endpoint, "any user of this machine may connect to an abstract socket", "give it a path")
        return
    if _is_shared(endpoint, os.path.dirname(path), uid):
        yield ok("sockets", f"{path}, which is shared: a broker listens there, and others may enter its directory")
    else:
        yield from directory("sockets", os.path.dirname(path), uid)
    yield from _check_file(path, uid)


def _is_shared(endpoint: str, directory: str, uid: int) -> bool:
    """Whether it is a service's socket: one in a directory like /run, which a broker is passed and does not make."""
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
        yield fail("sockets", f"{path} is no socket", "a broker cannot listen there", f"move {path} away")
    elif found.st_uid not in (uid, 0):
        yield fail(
            "sockets",
            f"{path} belongs to uid {found.st_uid}",
            "it is not your broker's",
            f"ask that user, or rm {path}",
        )


def _check_tcp(endpoint: str, state_dir: str) -> Iterator[Finding]:
    try:
        pair = KeyStore(state_dir).server()
    except InvalidKey as error:
        yield fail(
            "sockets",
            str(error),
            "a broker does not start at tcp:// with such a key",
            "make a new one: replctl keys new NAME",
        )
        return
    if pair is not None or endpoint.removeprefix("tcp://").startswith(_LOOPBACK):
        yield ok("sockets", f"{endpoint}, {'clients come with keys' if pair else 'this machine alone'}")
    else:
        cause = "beyond loopback clients need keys; a broker does not start there without"
        yield fail(
            "sockets", f"{endpoint}, no keys in {state_dir}", cause, "replctl keys new NAME, or listen on 127.0.0.1"
        )


def secrets(state_dir: str) -> Iterator[Finding]:
    """Files with secrets in them that others could read, if the folders above ever let them."""
    for name in ("keys/server.toml", "audit.ndjson", "history"):
        path = os.path.join(state_dir, name)
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if mode & 0o077:
            yield warn("secrets", f"{path} has mode {mode:04o}", "others may read or write it", f"chmod 600 {path}")
