"""Completion for Bash: queries for `compgen`, and their results."""

from __future__ import annotations

import re
from typing import NamedTuple

from replwire.replies import Completion

_LOOK_CHARS = 1000  # examined before the cursor
_VARIABLE = re.compile(r"\$\{?[#!]?([A-Za-z_][A-Za-z_0-9]*)?$")
_WORD = re.compile(r"(?:[^\s;|&<>(){}$`\"'=\\]|\\.)*$")
_COMMAND_BEFORE = re.compile(
    r"(?:^|[;|&({\n!]|(?:^|[\s;])(?:then|do|else|elif|if|while|until|time|exec|command|builtin|eval))\s*$"
)
_OPTION_BEFORE = re.compile(r"(?:^|[\s;|&(])(set\s+[-+]o|shopt(?:\s+-\w+)*)\s+(?:\w+\s+)*$")
_DIRECTORY_BEFORE = re.compile(r"(?:^|[\s;|&(])(?:cd|pushd|rmdir)\s+$")
_COMMANDS = (
    ("keyword", "keyword"),
    ("builtin", "builtin"),
    ("alias", "alias"),
    ("function", "function"),
    ("command", "command"),
)


class CompletionQuery(NamedTuple):
    """Queries for completing `prefix` at `start`: pairs of compgen action and result type, in order."""

    start: int
    prefix: str
    asks: tuple[tuple[str, str], ...]


def plan_completion(code: str, pos: int) -> CompletionQuery:
    """Plan the completion at `pos`, an offset in characters."""
    pos = max(0, pos)
    cut = max(0, pos - _LOOK_CHARS)
    before = code[cut:pos]
    variable = _VARIABLE.search(before)
    if variable is not None:
        prefix = variable[1] or ""
        return CompletionQuery(cut + len(before) - len(prefix), prefix, (("variable", "variable"),))
    word = _WORD.search(before)
    assert word is not None  # always matches, possibly empty
    start, prefix = cut + word.start(), word[0].replace("\\", "")
    line = before[: word.start()]
    option = _OPTION_BEFORE.search(line)
    if option is not None:
        return CompletionQuery(start, prefix, (("setopt" if option[1].startswith("set") else "shopt", "option"),))
    if _DIRECTORY_BEFORE.search(line):
        return CompletionQuery(start, prefix, (("directory", "path"),))
    opened = line.rstrip().endswith("`") and line.count("`") % 2 == 1
    if "/" not in prefix and (opened or _COMMAND_BEFORE.search(line)):
        return CompletionQuery(start, prefix, _COMMANDS)
    return CompletionQuery(start, prefix, (("file", "path"),))


def collect_completions(asked: CompletionQuery, answers: list[str], most: int) -> list[Completion]:
    """Collect at most `most` words, each with the first type that names it."""
    found: dict[str, str] = {}
    for (_, kind), answer in zip(asked.asks, answers, strict=False):
        for word in answer.split("\n"):
            if word.startswith(asked.prefix) and word and not word.startswith("__replctl_"):
                found.setdefault(word, kind)
    return [Completion(word, kind) for word, kind in sorted(found.items())[:most]]
