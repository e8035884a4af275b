"""Code as a program: its arguments in the session, its exit status, its input."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence

import click

from replctl.client.result import SHELL_NAMESPACE, Result
from replctl.client.sync import Client
from replctl.commands.context import CommandContext
from replctl.commands.foreground import TERMINAL, InputSource, single_input
from replctl.commands.messages import opening_notices

_NODE_EXIT = re.compile(r"process\.exit\((\d+)\)\Z")
_SUFFIXES = {".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "bash", ".bash": "bash"}
_MAX_LINE_BYTES = 65_536


def runtime_of_file(path: str) -> str | None:
    """Return the runtime that a file's suffix names, or None for Python and for no suffix."""
    return _SUFFIXES.get(os.path.splitext(path)[1].lower())


def set_arguments_code(runtime: str, path: str, arguments: Sequence[str]) -> str:
    """Return code that makes these the program's arguments: `sys.argv`, `process.argv` or `$1` and the others.

    Args:
        runtime: Runtime of the session; the path of an environment is Python.
        path: The program's file.
        arguments: Its arguments.
    """
    import json  # needed for programs with arguments only
    import shlex

    if runtime == "bash":
        return f"set -- {shlex.join(arguments)}"
    if runtime == "node":
        return f"process.argv.splice(1, Infinity, ...{json.dumps([path, *arguments])}); undefined"
    return f"__import__('sys').argv[:] = {[path, *arguments]!r}"


def exit_status_of(result: Result) -> int | None:
    """Return the exit status that the code chose, or None if it chose none.

    It is the status of Bash's last command, the number of `sys.exit(N)` or `process.exit(N)`, and 1 for a text, as in
    the programs themselves.
    """
    if result.ns == SHELL_NAMESPACE and result.ok:
        value = result.value or ""
        return int(value) & 255 if value.isdecimal() else None
    if result.ex is None:
        return None
    if result.ex.type == "SystemExit":
        number = re.fullmatch(r"-?\d{1,18}", result.ex.message)
        return int(result.ex.message) & 255 if number else 1
    if result.ex.type == "Exit" and (found := _NODE_EXIT.match(result.ex.message)):
        return int(found[1]) & 255
    return None


def last_words(result: Result) -> str | None:
    """Return the text that `sys.exit` was called with, which Python prints; None if the code ended otherwise."""
    if result.ex is None or result.ex.type != "SystemExit" or re.fullmatch(r"-?\d{1,18}", result.ex.message):
        return None
    return result.ex.message


def _piped_input() -> InputSource | None:
    """Return stdin as a source of input, if it is a pipe or a file; None for anything else."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    return InputSource(_read_piped_line, descriptor=0)


def _read_piped_line() -> str | None:
    """Return the next line. What follows it is left to whoever reads the pipe next."""
    line = b""
    while len(line) < _MAX_LINE_BYTES and (byte := os.read(0, 1)):
        line += byte
        if byte == b"\n":
            break
    return line.decode("utf-8", "replace") or None


def given_input(feed: str | None) -> list[InputSource]:
    """Return a source of the line that the caller gave, if any."""
    return [] if feed is None else [single_input(feed + "\n")]


def program_inputs(feed: str | None) -> list[InputSource]:
    """Return the sources of a program's input: a given line, then the terminal or a pipe."""
    rest = TERMINAL if os.isatty(0) else _piped_input()
    return given_input(feed) if rest is None else [*given_input(feed), rest]


def open_session(
    context: CommandContext,
    client: Client,
    session: str | None,
    runtime: str | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    cwd_needed: bool,
) -> str:
    """Open a session, or a new one without a name, say so if it is new, and return its name or id."""
    reply = client.new(session, runtime, cwd, env, reuse=True, cwd_needed=cwd_needed)
    if not context.json:
        opening = Result(session=session, created=reply.created, cwd=reply.cwd, cause=reply.cause, notice=reply.notice)
        opening.ephemeral = session is None
        for notice in opening_notices(opening):
            context.screen.notice(notice)
    return session or reply.session or ""


def set_arguments(client: Client, session: str, file: str, arguments: Sequence[str], needs: str | None) -> None:
    """Make these the arguments of the next eval of a session. Raises a usage error for a file of another runtime.

    Args:
        client: A connected client.
        session: The session, which exists.
        file: The program's file.
        arguments: Its arguments.
        needs: The runtime that the file's suffix names, or None.
    """
    runtime = str(client.info(session, variables=False).get("runtime"))
    if needs is not None and runtime != needs:
        raise click.UsageError(f"{file} is for {needs}, and the session runs {runtime}; name another with -s")
    code = set_arguments_code(runtime, file, arguments)
    client.eval(code, session, silent=True, create=False, store_history=False).raise_for_error()
