"""Input of `attach` that IPython's users know and that is no code: `name?`, `%time`, `%load` and `!command`."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*"
_BEFORE = re.compile(rf"(\?{{1,2}})\s*({_NAME})\s*\Z")
_AFTER = re.compile(rf"({_NAME})\s*(\?{{1,2}})\s*\Z")


class NameQuestion(NamedTuple):
    """`name?`: signature and docs of a name; with `name??` its source as well."""

    name: str
    with_source: bool


class TimedCode(NamedTuple):
    """`%time CODE`: run code, and show how long it took."""

    code: str


class FileToEdit(NamedTuple):
    """`%load FILE`: put a local file's text into the prompt."""

    path: str


class ShellCommand(NamedTuple):
    """`!COMMAND`: run a shell command in the session."""

    command: str


Magic = NameQuestion | TimedCode | FileToEdit | ShellCommand


def parse_magic(block: str, runtime: str) -> Magic | None:
    """Return what a block asks for, or None for code. In Bash, where `?` and `!` have a meaning, every block is code.

    Args:
        block: What was typed.
        runtime: `python`, `node`, `bash`, or an environment, which is Python.
    """
    if runtime == "bash":
        return None
    text = block.strip()
    if (match := _BEFORE.match(text)) is not None:
        return NameQuestion(match[2], match[1] == "??")
    if (match := _AFTER.match(text)) is not None:
        return NameQuestion(match[1], match[2] == "??")
    word, _, rest = text.partition(" ")
    if word == "%time" and rest.strip():
        return TimedCode(rest.strip())
    if word == "%load" and rest.strip():
        return FileToEdit(rest.strip())
    if runtime != "node" and text.startswith("!") and text[1:].strip():
        return ShellCommand(text[1:].strip())
    return None


def shell_code(command: str) -> str:
    """Return Python code that runs a shell command, leaves no name behind, and shows a status other than 0."""
    return f'__import__("subprocess").call({command!r}, shell=True) or None'


def source_code(name: str) -> str:
    """Return Python code that prints the source of a name."""
    return f'print(__import__("inspect").getsource({name}), end="")'
