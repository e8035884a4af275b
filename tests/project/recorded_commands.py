"""Recorded commands of the pages: found, run again, and compared with what the page says they print.

A block is recorded if a line of it begins with `$ `. The line is a command of a shell, up to the end of its quotes; the
lines after it are its output, stdout and stderr as they come, and `[exit N]`, which may be left out for 0. `…` alone
on a line stands for any lines, within a line for any text. A comment `<!-- not run: REASON -->` before a block says
why it cannot be run; its commands must be ones that `replctl` takes all the same. `<!-- before: COMMANDS -->` prepares
what the block takes for granted, in a shell, which must succeed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>not run|before): (?P<words>(?:(?!-->).)+) -->\n+)?^```(?:console)?\n(?P<text>(?:(?!^```).*\n)*?)^```$",
    re.M,
)
_EXIT = re.compile(r"\[exit (\d+)\]\Z")
_TIMEOUT_S = 60

# What differs from run to run, in both texts.
_VARYING = (
    (re.compile(r"\b(pid|process) \d+"), r"\1 N"),
    (re.compile(r"/opt/replctl/bin/python[\d.]*"), "/opt/replctl/bin/python"),
    (re.compile(r"\buid:\d+"), "uid:N"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:bytes|MiB|KiB)\b"), "SIZE"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00)?"), "MOMENT"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b0\.\d{8,}"), "RANDOM"),
    (re.compile(r'"duration-ms":[\d.]+'), '"duration-ms":N'),
    (re.compile(r"\bcheckpoint \d+"), "checkpoint N"),
    (re.compile(r"[ \t]+"), " "),
)


class RecordedCommand(NamedTuple):
    """A command, its output and its exit code."""

    command: str
    output: str
    exit: int


class RecordedBlock(NamedTuple):
    """The commands of one block of a page; why they are not run, or what is run before them, if there is a mark."""

    page: Path
    line: int
    commands: list[RecordedCommand]
    reason: str | None
    before: str | None


def find_blocks(page: Path) -> list[RecordedBlock]:
    """Return the recorded blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        if any(line.startswith("$ ") for line in match["text"].splitlines()):
            line = text.count("\n", 0, match.start()) + 1
            marks = {"not run": None, "before": None, match["mark"]: match["words"]}
            found.append(RecordedBlock(page, line, _parse(match["text"]), marks["not run"], marks["before"]))
    return found


def _parse(block: str) -> list[RecordedCommand]:
    commands = []
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        assert line.startswith("$ "), f"output before the first command: {line}"
        command = line[2:]
        while _is_open(command):
            command += "\n" + lines.pop(0)
        output = []
        while lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        code = _EXIT.match(output[-1]) if output else None
        commands.append(
            RecordedCommand(command, "\n".join(output[:-1] if code else output), int(code[1]) if code else 0)
        )
    return commands


def _is_open(command: str) -> bool:
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


class Replayer:
    """Runs recorded commands one after the other, with a broker and a directory of their own.

    Args:
        state: The state directory, with a short path; the pages call it `/tmp/dx`.
        project: The working directory; the pages call it `/tmp/project`.
    """

    def __init__(self, state: Path, project: Path) -> None:
        self._state, self._project = state, project
        parts = [str(ROOT / part) for part in ("wire", "worker", "broker", "cli")]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("REPLCTL_", "XDG_"))}
        self._env = env | {
            "REPLCTL_STATE_DIR": str(state),
            "HOME": str(state),
            "PYTHONPATH": os.pathsep.join(parts),
            "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        }

    def run(self, command: str) -> RecordedCommand:
        """Run a command and return what it printed."""
        command = command.replace("/tmp/project", str(self._project)).replace("/tmp/dx", str(self._state))
        ended = subprocess.run(
            ["bash", "-c", command], cwd=self._project, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        output = ended.stdout.decode("utf-8", "replace").removesuffix("\n")
        programs = (Path(sys.executable).parent, "/opt/replctl/bin")
        home = (self._state / ".config", "~/.config")
        for path, name in ((self._project, "/tmp/project"), home, (self._state, "/tmp/dx"), programs):
            output = output.replace(str(path), name)
        return RecordedCommand(command, output, ended.returncode)


def is_as_printed(recorded: RecordedCommand, ran: RecordedCommand) -> bool:
    """Return whether a run printed what the page says, but for numbers that differ from run to run."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in _plain(recorded.output).splitlines()
    )
    output = _plain(ran.output)
    return recorded.exit == ran.exit and re.fullmatch(pattern, output + "\n" if output else "") is not None


def _plain(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def words_of_replctl(command: str) -> list[list[str]]:
    """Return the arguments of each call of `replctl` in a command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    current: list[str] | None = None
    for word in lexer:
        if word == "replctl" and current is None:
            current = []
            calls.append(current)
        elif word[0] in "|&;<>()":
            current = None
        elif current is not None:
            current.append(word)
    return calls
