"""Package management for the environment that runs this file: `python packages.py ACTION [ARGUMENT...]`.

Standard library only, Python 3.8 or later. Uses `uv` if it is on the PATH, else the environment's `pip`. The exit code
is the tool's own; 2 if there is nothing to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

LOCKS = ("pylock.toml", "requirements.txt", "pyproject.toml")  # searched by `install`, in this order


def main(action: str, arguments: list[str]) -> int:
    """Perform an action and return its exit code."""
    command = COMMANDS[action](arguments)
    if command is None:
        sys.stderr.write("nothing to install here: no %s\n" % ", ".join(LOCKS))
        return 2
    sys.stderr.write("$ %s\n" % " ".join(command))
    sys.stderr.flush()
    return subprocess.call(command)


def _tool(*words: str) -> list[str]:
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", words[0], "--python", sys.executable, *words[1:]]
    return [sys.executable, "-m", "pip", words[0], "--disable-pip-version-check", *words[1:]]


def _add(packages: list[str]) -> list[str]:
    return _tool("install", *packages)


def _remove(packages: list[str]) -> list[str]:
    return _tool("uninstall", *packages) if shutil.which("uv") else _tool("uninstall", "--yes", *packages)


def _list(_: list[str]) -> list[str]:
    return _tool("list")


def _install(files: list[str]) -> list[str] | None:
    """Install a given file, else the first lock or requirements file found, else the project itself."""
    name = files[0] if files else next((name for name in LOCKS if os.path.exists(name)), None)
    if name is None:
        return None
    if os.path.basename(name) == "pyproject.toml":
        return _tool("install", "--editable", os.path.dirname(os.path.abspath(name)))
    return _tool("install", "--requirement", name)


def _test(arguments: list[str]) -> list[str]:
    pytest = subprocess.call(
        [sys.executable, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('pytest') is None)"]
    )
    if pytest == 0:
        return [sys.executable, "-m", "pytest", *arguments]
    return [sys.executable, "-m", "unittest", *(arguments or ["discover"])]


COMMANDS = {"add": _add, "remove": _remove, "list": _list, "install": _install, "test": _test}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
