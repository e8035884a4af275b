"""Tests of a project, run by the environment that runs this file: `python test_runner.py [ARGUMENT...]`.

Standard library only, Python 3.8 or later. The exit code is the tool's own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys


def build_command(arguments: list[str]) -> list[str]:
    """Return the command of pytest, where there is one, else of unittest."""
    if importlib.util.find_spec("pytest") is not None:
        return [sys.executable, "-m", "pytest", *arguments]
    return [sys.executable, "-m", "unittest", *(arguments or ["discover"])]


if __name__ == "__main__":
    command = build_command(sys.argv[1:])
    sys.stderr.write("$ %s\n" % " ".join(command))
    sys.stderr.flush()
    sys.exit(subprocess.call(command))
