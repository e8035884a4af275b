"""`env add` and its like as code for the session's own interpreter: it has the rights, the network and the folders
that the session has, and no others."""

from __future__ import annotations

from pathlib import Path

from replwire.ops import Env

TOOL = Path(__file__).parent / "runtimes/python/packages.py"


def build_code(request: Env) -> str:
    """One expression whose value is the tool's exit code. It binds no name."""
    words = [str(TOOL), request.action, *([request.path] if request.path else []), *request.packages]
    return f"__import__('subprocess').call([__import__('sys').executable, *{words!r}])"
