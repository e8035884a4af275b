"""Command that starts a Node session."""

from __future__ import annotations

from pathlib import Path

_DRIVER = Path(__file__).with_name("driver.mjs")


def build_argv(interpreter: str, control_fd: int, late_fd: int) -> list[str]:
    """Build the command line of the driver in Node 18 or newer, with these two descriptors open."""
    # Node's own warnings (experimental, deprecated) would appear in the output of some eval.
    return [interpreter, "--no-warnings", str(_DRIVER), str(control_fd), str(late_fd)]
