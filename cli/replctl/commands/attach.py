"""`replctl attach`: an interactive prompt on a live session, or its input from a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.foreground import TERMINAL, InputSource
from replctl.commands.prompt import SessionPrompt, is_complete, split_blocks
from replctl.commands.session_defaults import directory_for_new
from replwire.faults import ExitCode
from replwire.identifiers import DEFAULT_SESSION
from replwire.paths import state_dir
from replwire.private_directories import make_private_directory

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


@click.command()
@click.argument("session", default=DEFAULT_SESSION)
@click.option("--runtime", metavar="NAME", help="Runtime of a new session.")
@with_common_options
def attach(context: CommandContext, session: str, runtime: str | None) -> int:
    """Open an interactive prompt on SESSION, creating it if it does not exist.

    Enter runs a complete block, Alt-Enter adds a line. Ctrl-C clears the line, or interrupts running code. Ctrl-D
    leaves; the session keeps running.
    """
    with context.client() as client:
        cwd = directory_for_new(None, client.address.endpoint)
        opened = client.new(session, runtime, cwd, reuse=True, cwd_needed=False)
        if opened.created:
            where = f" in {opened.cwd}" if opened.cwd else ""
            lost = f"; the previous session of this name was lost: {opened.cause}" if opened.cause else ""
            context.screen.notice(f"new session {session!r}{where}{lost}")
        if opened.notice:
            context.screen.notice(opened.notice)
        if not os.isatty(0):
            with open(0, encoding="utf-8", errors="replace", closefd=False) as lines:
                answer = InputSource(lambda: lines.readline() or None)
                return _run_piped(SessionPrompt(context, client, session, answer), lines.readline)
        dialogue = SessionPrompt(context, client, session, TERMINAL)
        _run_interactive(dialogue)
    context.screen.notice(f"detached; session {session!r} keeps running: replctl attach {session}")
    return ExitCode.OK


def _run_piped(dialogue: SessionPrompt, lines: Callable[[], str]) -> int:
    """Run each block of stdin. Returns the exit code of the last block that failed."""
    code = 0
    for block in split_blocks(lines):
        if not dialogue.handle_block(block):
            break
        code = dialogue.exit or code
    return code


def _run_interactive(dialogue: SessionPrompt) -> None:
    shell = _prompt_session(dialogue.session)
    while True:
        try:
            block = shell.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not dialogue.handle_block(block):
            return


def _prompt_session(session: str) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    return PromptSession(
        message=f"{session}> ",
        multiline=True,
        prompt_continuation=lambda width, _line, _wraps: "." * (width - 1) + " ",
        history=FileHistory(_history_file()),
        key_bindings=_key_bindings(),
        enable_open_in_editor=True,
    )


def _history_file() -> str:
    """Return the path of the user's history file, created with mode 0600."""
    folder = state_dir(os.environ)
    make_private_directory(folder)
    path = os.path.join(folder, "history")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return path


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            opens = buffer.document.current_line_before_cursor.rstrip().endswith(":")
            buffer.newline()
            if opens:
                buffer.insert_text("    ")

    @keys.add("escape", "enter")
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return keys
