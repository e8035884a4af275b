"""Snapshot of a shell: a script of declarations, working directory and options only."""

from __future__ import annotations

import re

from replwire.replies import SkippedName
from replworker.runtimes.bash.shell_names import DeclaredVariable, ShellNames, has_only_integers, parse_declarations
from replworker.runtimes.frames import DumpedFrame

HEAD = "# bash session, as replctl keeps it: declarations only\n"
_TRAP = re.compile(r"^trap -- '(?:[^']|'\\'')*+' (\S+)$", re.M | re.S)
_PLAIN_NAME = re.compile(r'"[A-Za-z_][A-Za-z_0-9]*"')
_FUNCTION = re.compile(r"^(\S+) \(\) $", re.M)
PARTS = 11


def build_dump(n: int, parts: list[str], options: tuple[str, str]) -> DumpedFrame:
    """Build the reply to a dump from the parts sent by requests.sh and a new shell's `options`."""
    variables, functions, exported, aliases, traps, umask, directory, jobs, files, set_options, shell_options = parts
    lines: list[str] = []
    left: list[SkippedName] = []
    for name, how in parse_declarations(variables).items():
        why = _cannot_copy(how)
        if why:
            left.append(SkippedName(name, why))
        else:
            lines.append(how.text)
    count = len(lines) + len(_FUNCTION.findall(functions))
    lines += [functions, *(f"declare -fx {name}" for name in exported.split())]
    lines += [aliases, *(match.group() for match in _TRAP.finditer(traps) if "__replctl_" not in match.group())]
    lines += [f"umask {umask}", f"cd -- {directory}"]
    lines += _changed(shell_options, options[1]) + _changed(set_options, options[0])
    left += [SkippedName(f"job {pid}", "a process belongs to its own session") for pid in jobs.split()]
    left += [SkippedName(f"descriptor {fd}", "an open file belongs to its own session") for fd in files.split()]
    data = HEAD + "\n".join(line for line in lines if line) + "\n"
    return DumpedFrame(n=n, count=count, bytes=len(data.encode()), data=data, skipped=left)


def find_missing(data: str, now: ShellNames) -> tuple[int, list[SkippedName]]:
    """Return the number of names restored from a snapshot, and those that differ."""
    left = []
    wanted = parse_declarations(data)
    for name, how in wanted.items():
        here = now.variables.get(name)
        if name not in now.variables or (here is not None and here.text != how.text):
            left.append(name)
    functions = set(_FUNCTION.findall(data)) & now.functions
    why = "this session has a read-only one of that name"
    return len(wanted) - len(left) + len(functions), [SkippedName(name, why) for name in left]


def _cannot_copy(how: DeclaredVariable) -> str | None:
    if "i" in how.flags and how.value is not None and not has_only_integers(how.value):
        return "an integer with text, which bash would evaluate"
    if "n" in how.flags and how.value is not None and not _PLAIN_NAME.fullmatch(how.value):
        return "a reference to an expression, which bash would evaluate"
    return None


def _changed(now: str, fresh: str) -> list[str]:
    known = set(fresh.split("\n"))
    return [line for line in now.split("\n") if line not in known]
