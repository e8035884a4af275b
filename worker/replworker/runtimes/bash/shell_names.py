"""Names of a shell, parsed from `declare -p`, compared and described. Nothing is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from replwire.replies import Variable

CHANGED_NAMES = 100
_PREVIEW_CHARS = 80
_MAX_NAMES = 20_000

# Variables that Bash itself changes, and the driver's.
_OWN = re.compile(
    r"__replctl_.*|BASH.*|COMP_.*|COLUMNS|DIRSTACK|EPOCH(REALTIME|SECONDS)|FUNCNAME|FUNCNEST|GROUPS|HISTCMD|LINENO|LINES|OLDPWD"
    r"|PIPESTATUS|PROMPT_COMMAND|PWD|RANDOM|SECONDS|SHELLOPTS|SRANDOM|TMOUT|_"
)
_OWN_FUNCTIONS = re.compile(r"__replctl_.*|exit|read|command_not_found_handle")

_QUOTED = r'"(?:[^"\\]|\\.)*+"' + r"|\$'(?:[^'\\]|\\.)*+'"
_DECLARED = re.compile(
    rf"^declare -(\S+) ([A-Za-z_][A-Za-z_0-9]*)(?:=((?:{_QUOTED}|\((?:{_QUOTED}|[^\"'()])*+\)|[^\s\"'()])*+))?$",
    re.M | re.S,
)
_STRING = re.compile(_QUOTED, re.S)
_ELEMENT = re.compile(rf"\[(?:{_QUOTED}|[^\]\"'])*+\]=", re.S)
_UNQUOTED = re.compile(r"\\(.)", re.S)
_ANSI = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.S)
_ANSI_BYTES = {b"a": 7, b"b": 8, b"e": 27, b"E": 27, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}


@dataclass(frozen=True, slots=True)
class DeclaredVariable:
    """A variable in `declare -p`: attribute letters (`-` for none) and its quoted value."""

    name: str
    flags: str
    value: str | None
    text: str


_Lines = dict[str, DeclaredVariable | None]  # lines of `declare -p`; None for one that declares nothing of the user's


@dataclass(slots=True)
class ShellNames:
    """All names defined at one moment. A variable is None if only its name was requested."""

    variables: dict[str, DeclaredVariable | None] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()
    lines: _Lines = field(default_factory=dict)

    @classmethod
    def parse(cls, variables: str, functions: str, known: _Lines | None = None) -> ShellNames:
        """Parse the output of `declare -p` or `compgen -v`, and of `compgen -A function`.

        `known` are the lines of an earlier output: most are there again.
        """
        names = functions.split("\n")[:_MAX_NAMES]
        theirs = frozenset(name for name in names if name and not _OWN_FUNCTIONS.fullmatch(name))
        lines = _parse_lines(variables.removesuffix("\n").split("\n"), known or {})
        if lines is not None:
            return cls({each.name: each for each in lines.values() if each is not None}, theirs, lines)
        found: dict[str, DeclaredVariable | None] = dict.fromkeys(variables.split("\n"))
        if variables.startswith("declare "):
            found = dict(parse_declarations(variables))
        ours = {name: how for name, how in list(found.items())[:_MAX_NAMES] if name and not _OWN.fullmatch(name)}
        return cls(ours, theirs)

    def changed_since(self, before: ShellNames) -> list[str]:
        """Return new or changed names, sorted, at most CHANGED_NAMES. Functions only if new."""
        names = [name for name in self.variables if self.differs(name, before)]
        names += self.functions - before.functions
        return sorted(names)[:CHANGED_NAMES]

    def differs(self, name: str, before: ShellNames) -> bool:
        """Return whether a variable is new or has a changed value."""
        if name not in before.variables:
            return True
        now, then = self.variables[name], before.variables[name]
        return now is not None and then is not None and now.text != then.text


def parse_declarations(text: str) -> dict[str, DeclaredVariable]:
    """Parse the variables in the output of `declare -p`; other lines are skipped."""
    found = map(_declared, _DECLARED.finditer(text))
    return {each.name: each for each in found if "f" not in each.flags}


def _declared(match: re.Match[str]) -> DeclaredVariable:
    return DeclaredVariable(match[2], match[1], match[3], match[0])


def _parse_lines(lines: list[str], known: _Lines) -> _Lines | None:
    """Parse lines that are declarations each; None if one may belong to a value of several lines."""
    if len(lines) > _MAX_NAMES:
        return None
    found: _Lines = {}
    for line in lines:
        if line in known:
            found[line] = known[line]
        elif (match := _DECLARED.fullmatch(line)) is not None:
            found[line] = None if "f" in match[1] or _OWN.fullmatch(match[2]) else _declared(match)
        elif line.startswith("declare ") and '"' not in line and "'" not in line:
            found[line] = None  # of no variable: `declare -- -`
        else:
            return None
    return found


def describe(name: str, how: DeclaredVariable | None) -> Variable:
    """Return the variable's row in the list of variables."""
    if how is None:
        return Variable(name=name, type="variable")
    kind = _kind(how.flags)
    if how.value is None:
        return Variable(name=name, type=kind)
    if kind in ("array", "assoc"):
        size = len(_ELEMENT.findall(_STRING.sub('""', how.value)))
        return Variable(name=name, type=kind, size=size, preview=_short(how.value))
    value = unquote(how.value)
    return Variable(name=name, type=kind, size=len(value), preview=_short(value))


def unquote(value: str) -> str:
    """Return a scalar's value from its form in `declare -p`."""
    if value.startswith("$'"):
        return _ANSI.sub(_ansi, value[2:-1].encode()).decode("utf-8", "replace")
    if value.startswith('"'):
        return _UNQUOTED.sub(lambda match: match[1] if match[1] in '"\\$`' else match[0], value[1:-1])
    return value


def has_only_integers(value: str) -> bool:
    """Return whether all values are decimal numbers; Bash evaluates other text assigned to integers."""
    return all(re.fullmatch(r'"-?[0-9]{1,20}"', text) for text in _STRING.findall(_ELEMENT.sub("", value)))


def _ansi(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1].isdigit() and code[0] < 0x38:
        return bytes([int(code, 8) & 0xFF])
    if len(code) > 1:
        return bytes([int(code[1:], 16)])
    return bytes([_ANSI_BYTES[code]]) if code in _ANSI_BYTES else code


def _kind(flags: str) -> str:
    for letter, kind in (("A", "assoc"), ("a", "array"), ("n", "reference"), ("i", "integer"), ("x", "exported")):
        if letter in flags:
            return kind
    return "string"


def _short(value: str) -> str:
    return value if len(value) <= _PREVIEW_CHARS else value[: _PREVIEW_CHARS - 1] + "…"
