"""Clients of other people, installed beside the checkout in `.interop/acp`, with exact versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".interop" / "acp"
PACKAGES = {"@agentclientprotocol/sdk": "2.4.0", "acpx": "0.19.1"}
_INSTALL_S = 600


def need(*programs: str) -> None:
    """Skip without these programs; in CI they must be there."""
    missing = [each for each in programs if shutil.which(each) is None]
    assert not (missing and os.environ.get("CI")), f"CI has no {', '.join(missing)}"
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def installed() -> Path:
    """The folder with the packages, installed when they are not there yet. Their install scripts do not run."""
    need("node", "npm")
    if {name: _version(name) for name in PACKAGES} != PACKAGES:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=_INSTALL_S)
        assert done.returncode == 0, done.stderr
    return FOLDER


def _version(name: str) -> str | None:
    try:
        found = json.loads((FOLDER / "node_modules" / name / "package.json").read_text())["version"]
    except FileNotFoundError:
        return None
    return str(found)
