"""Package operations of `env` as code for the session's own interpreter, with the session's rights only."""

from __future__ import annotations

from pathlib import Path

from replwire.ops import Env

TOOL = Path(__file__).parent / "runtimes/python/packages.py"


def build_code(request: Env) -> str:
    """Build an expression whose value is the tool's exit code. It binds no names."""
    words = [str(TOOL), request.action, *([request.path] if request.path else []), *request.packages]
    return f"__import__('subprocess').call([__import__('sys').executable, *{words!r}])"
