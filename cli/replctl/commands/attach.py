"""`replctl attach`: an interactive prompt on a live session, or its input from a pipe."""

from __future__ import annotations

import codeop
import os
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from replctl.client import request_fields
from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    with_common_options,
)
from replctl.commands.foreground import TERMINAL, ForegroundEval, InputSource, confirm_at_terminal
from replctl.commands.listing import format_facts, show_jobs
from replctl.commands.messages import rollback_notices
from replctl.commands.params import directory_for_new
from replwire.faults import ExitCode
from replwire.paths import state_dir
from replwire.private_directories import make_private_directory

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

HELP = """\
/undo       undo the last eval
/branch TO  open a session TO that begins as a copy of this one, and go on in it
/reset      restart the session; all variables are lost
/info       runtime, directory, process, memory, variables
/jobs       running, queued and recent evals
/interrupt  interrupt the running eval (of another client; Ctrl-C interrupts your own)
/help       show this help
/quit       leave (also Ctrl-D); the session keeps running"""


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


def split_blocks(lines: Callable[[], str]) -> Iterator[str]:
    """Yield the blocks of a script. `lines` returns the next line with its newline, or "" at the end.

    Others may call `lines` in between: input that the code reads comes from the same source.
    """
    block = ""
    while line := lines():
        block += line
        text = block.removesuffix("\n")
        if is_complete(text):
            if text.strip():
                yield text
            block = ""
    if block.strip():
        yield block


class SessionPrompt:
    """Runs blocks of input in a session and prints the results."""

    def __init__(self, context: CommandContext, client: Client, session: str, answer: InputSource) -> None:
        self._context, self._client, self._answer = context, client, answer
        self.session = session
        self.exit: int = ExitCode.OK  # exit code of the last eval
        self._slash_commands: dict[str, Callable[[], None]] = {
            "/undo": self._undo,
            "/branch": lambda: context.screen.notice("/branch needs the name of the new session"),
            "/reset": self._reset,
            "/info": self._info,
            "/jobs": self._jobs,
            "/interrupt": self._interrupt,
            "/help": lambda: context.screen.block(HELP),
        }

    def handle_block(self, block: str) -> bool:
        """Run a block; errors are printed. Returns False if the block asks to leave."""
        self._context.screen.note_terminal_echo(line=True)
        word = block.strip()
        if word in ("/quit", "/exit"):
            return False
        if not word:
            return True
        try:
            if word.startswith("/"):
                self._run_slash_command(word)
            else:
                self.exit = ForegroundEval(
                    self._context,
                    self._client,
                    request_fields.eval_fields(block, self.session),
                    [self._answer],
                    confirm_at_terminal,
                ).run()
        except ReplError as error:
            self._context.fail(error)
        return True

    def _run_slash_command(self, word: str) -> None:
        command, _, argument = word.partition(" ")
        action = self._slash_commands.get(word)
        if command == "/branch" and argument:
            self._branch(argument.strip())
        elif action is None:
            self._context.screen.notice(f"unknown command {word.split()[0]}; /help lists the commands")
        else:
            action()

    def _undo(self) -> None:
        reply = self._client.rollback(self.session)
        self._context.screen.notice(f"back at checkpoint {reply.checkpoint} (epoch {reply.epoch})")
        for notice in rollback_notices(reply.undone_evals, reply.not_restored):
            self._context.screen.notice(notice)

    def _branch(self, to: str) -> None:
        reply = self._client.branch(self.session, to)
        self._context.screen.notice(f"session {to!r} begins with checkpoint {reply.checkpoint} of {self.session!r}")
        for each in reply.not_restored or []:
            self._context.screen.notice(f"the branch does not have: {each}")
        self.session = to

    def _reset(self) -> None:
        reply = self._client.reset(self.session)
        self._context.screen.notice(f"session restarted (epoch {reply.epoch}); all variables are lost")

    def _info(self) -> None:
        for line in format_facts(self._client.info(self.session)):
            self._context.screen.line(line)

    def _jobs(self) -> None:
        show_jobs(self._context.screen, self._client.jobs(self.session))

    def _interrupt(self) -> None:
        reply = self._client.interrupt(self.session)
        self._context.screen.notice("interrupted" if reply.interrupted else "nothing to interrupt")


@click.command(cls=SessionCommand)
@default_session_argument
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
    shell = _prompt_session(dialogue)
    while True:
        try:
            block = shell.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not dialogue.handle_block(block):
            return


def _prompt_session(dialogue: SessionPrompt) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    return PromptSession(
        message=lambda: f"{dialogue.session}> ",
        multiline=True,
        prompt_continuation=lambda width, _line, _wraps: "." * (width - 1) + " ",
        history=FileHistory(_history_file()),
        key_bindings=_key_bindings(),
        enable_open_in_editor=True,
    )


def _history_file() -> str:
    """Return the path of the user's history file, created with mode 0600."""
    directory = state_dir(os.environ)
    make_private_directory(directory)
    path = os.path.join(directory, "history")
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
