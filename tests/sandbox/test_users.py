"""An ordinary user's sessions are sandboxed like those of a root broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from replworker.sandbox.report import SandboxReport

HERE = Path(__file__).parent
NEED_GROUPS = "not verdict and not processor_share"


@pytest.mark.needs_root("these tests run as an ordinary user already")
def test_all_that_holds_for_root_holds_for_an_ordinary_user(report: SandboxReport) -> None:
    del report
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "as_user.py"),
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            NEED_GROUPS,
            str(HERE / "test_child.py"),
            str(HERE / "test_probe.py"),
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(HERE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[3-9]\d passed", done.stdout), done.stdout
    assert "skipped" not in done.stdout
