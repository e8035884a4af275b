"""Python environments: interpreter and variables of an environment given by path or name."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from typing import NamedTuple
from urllib.parse import quote, unquote

from replwire.private_directories import make_private_directory
from replworker.packages.tools import find_uv
from replworker.sandbox.prepare import ManagedEnvironment
from replworker.sandbox.rights import Rights, acting_as

_CREATE_S = 120.0
_INTERPRETER_PATHS = ("bin/python", ".venv/bin/python", "venv/bin/python")


class EnvironmentUnavailable(Exception):
    """The environment cannot be used. The message says why."""


class ResolvedInterpreter(NamedTuple):
    """An interpreter with its variables.

    `named` is set if the session chose it rather than the operator, `managed` if it belongs to a named environment.
    """

    executable: str
    env: dict[str, str]
    named: bool = False
    managed: ManagedEnvironment | None = None


def resolve_interpreter(
    environment: str | None, interpreter: str, root: str, env: dict[str, str], rights: Rights | None = None
) -> ResolvedInterpreter:
    """Resolve the interpreter of an environment.

    Args:
        environment: virtual environment, interpreter, project directory, `@NAME` or `@OWNER/NAME`; None for the default
        interpreter: the default interpreter
        root: directory of named environments, where missing ones are created
        env: variables of the session
        rights: rights with which paths are opened

    Raises:
        EnvironmentUnavailable: it is missing or cannot be created
    """
    if environment is None:
        return ResolvedInterpreter(interpreter, env)
    own = None
    if environment.startswith("@"):
        environment, rights = _ensure_environment(root, environment[1:], interpreter), None
        own = ManagedEnvironment(environment, interpreter)
    with acting_as(rights):
        return _resolve(environment, env, own)


def _resolve(environment: str, env: dict[str, str], own: ManagedEnvironment | None) -> ResolvedInterpreter:
    executable = _find_executable(environment)
    home = os.path.dirname(os.path.dirname(executable))
    more = {"PATH": f"{os.path.dirname(executable)}{os.pathsep}{env.get('PATH', os.defpath)}"}
    if os.path.exists(os.path.join(home, "pyvenv.cfg")):
        more["VIRTUAL_ENV"] = home
    return ResolvedInterpreter(executable, env | more, named=True, managed=own)


def _find_executable(path: str) -> str:
    if os.path.isdir(path):
        found = [os.path.join(path, place) for place in _INTERPRETER_PATHS if os.path.isfile(os.path.join(path, place))]
        if not found:
            raise EnvironmentUnavailable(
                f"no Python environment in {path}: it has none of {', '.join(_INTERPRETER_PATHS)}"
            )
        path = found[0]
    if not os.path.exists(path):
        raise EnvironmentUnavailable(f"no Python environment at {path}")
    if not os.access(path, os.X_OK, effective_ids=True):
        raise EnvironmentUnavailable(f"{path} is not executable")
    return path


def list_environments(directory: str) -> frozenset[str]:
    """Return the named environments in a directory, as `@NAME` and `@OWNER/NAME`."""
    found = set()
    for entry in _subdirectories(directory):
        if entry.startswith("@"):
            found |= {f"@{unquote(entry[1:])}/{name}" for name in _subdirectories(f"{directory}/{entry}")}
        else:
            found.add(f"@{entry}")
    return frozenset(found)


def _subdirectories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            return [name for name in found if not name.startswith(".")]
    except FileNotFoundError:
        return []


def _ensure_environment(directory: str, name: str, interpreter: str) -> str:
    """Return the path of a named environment, created if necessary.

    One worker at a time creates it and the others wait, up to the start timeout. A worker killed meanwhile leaves a
    note in the lock file, and the next one starts over.
    """
    owner, slash, name = name.rpartition("/")
    if slash:
        directory = os.path.join(directory, f"@{quote(owner, safe='')}")
    path = os.path.join(directory, name)
    make_private_directory(directory)
    with open(os.path.join(directory, f".{name}.lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_size:
            shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            os.write(lock.fileno(), b"being made\n")
            _create(path, interpreter)
        os.truncate(lock.fileno(), 0)
    return path


def _create(path: str, interpreter: str) -> None:
    """Create an environment, or leave nothing."""
    uv = find_uv()
    command = [uv, "venv", "--quiet", "--python", interpreter] if uv else [interpreter, "-m", "venv"]
    try:
        done = subprocess.run(
            [*command, path], stdin=subprocess.DEVNULL, capture_output=True, timeout=_CREATE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(path, ignore_errors=True)
        raise EnvironmentUnavailable(f"the environment could not be created: {error}") from None
    if done.returncode:
        shutil.rmtree(path, ignore_errors=True)
        message = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-500:]
        raise EnvironmentUnavailable(f"the environment could not be created: {message}")
