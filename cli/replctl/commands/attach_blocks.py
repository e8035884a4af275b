"""Blocks of typed or piped code: when one can be sent, and when the session's runtime says that it goes on."""

from __future__ import annotations

import codeop
import warnings
from enum import Enum

from replctl.client.result import Result

_LEAVING = frozenset({"/quit", "/exit", "exit", "exit()", "quit", "quit()", ".exit", "logout"})
_UNFINISHED = (  # how Bash and Node report code that ends too early; neither has run any of it
    "unexpected end of file",
    "unexpected EOF while looking for matching",
    "delimited by end-of-file",
    "Unexpected end of input",
    "Unterminated template",
)


class BlockOutcome(Enum):
    """The next step after a block: another block, the end, or more lines of the same block."""

    DONE = "done"
    LEAVE = "leave"
    MORE = "more"


def is_leaving(block: str) -> bool:
    """Return True for a word that ends the dialogue; the session stays."""
    return block.strip() in _LEAVING


def is_complete(text: str) -> bool:
    """Return True if a block of Python can be run as it is.

    A block with an indented last line may continue; an empty or unindented line ends it. Text that is not valid Python
    is complete: the session reports the error.
    """
    lines = text.split("\n")
    if text.startswith("/") or not text.strip():
        return True
    if len(lines) > 1 and lines[-1][:1] in (" ", "\t") and lines[-1].strip():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the session's compiler warns
        try:
            return codeop.compile_command(text, symbol="exec") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True


def can_be_sent(text: str, runtime: str) -> bool:
    """Return True if a block may be sent: a runtime other than Python judges every block itself."""
    return runtime in ("bash", "node") or is_complete(text)


def is_unfinished(result: Result, text: str) -> bool:
    """Return True if the runtime refused a block because it ends too early; an empty line at its end asks for that."""
    if result.ex is None or result.ex.type != "SyntaxError" or text.endswith("\n\n"):
        return False
    message = result.ex.message
    return any(words in message for words in _UNFINISHED) or (
        "missing ) after argument list" in message and text.count("(") > text.count(")")
    )
