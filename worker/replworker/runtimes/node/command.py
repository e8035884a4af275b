"""How a node session is started."""

from __future__ import annotations

from pathlib import Path

_DRIVER = Path(__file__).with_name("driver.mjs")


def build_argv(interpreter: str, control_fd: int, late_fd: int) -> list[str]:
    """The arguments that execute the driver in a node >= 18, with these two descriptors open."""
    # Warnings of node's own (experimental, deprecated) would stand in the output of whatever eval meets them first.
    return [interpreter, "--no-warnings", str(_DRIVER), str(control_fd), str(late_fd)]
