"""A prompt's talk with one session, without the terminal: what a block of text does, and when it is a block."""

from __future__ import annotations

import codeop
import warnings
from collections.abc import Callable, Iterator

from replctl.client import request_fields
from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.commands.context import CommandContext
from replctl.commands.foreground import ForegroundEval, InputSource, confirm_at_terminal
from replctl.commands.listing import format_facts, show_jobs
from replwire.faults import ExitCode

HELP = """\
/reset      a fresh worker; all names are gone
/info       runtime, folder, process, memory, variables
/jobs       running, queued and recent evals
/interrupt  interrupt what the session runs (for another caller's eval; Ctrl-C is for your own)
/help       this
/quit       leave; the session lives on (Ctrl-D does the same)"""


def is_complete(text: str) -> bool:
    """Whether a block of python may run as it stands; an unfinished one, or one that may go on, is not.

    A block with an indented last line may go on: an empty line, or one at the margin, ends it. Text that is no python
    is complete: the session says what is wrong with it.
    """
    lines = text.split("\n")
    if text.startswith("/") or not text.strip():
        return True
    if len(lines) > 1 and lines[-1][:1] in (" ", "\t") and lines[-1].strip():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the session's own compiler will warn
        try:
            return codeop.compile_command(text, symbol="exec") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True


def split_blocks(lines: Callable[[], str]) -> Iterator[str]:
    """The blocks that a script of lines falls into. `lines` gives the next one with its newline, "" at the end.

    It may be called by others in between: lines that the code reads as its input are taken from the same place.
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
    """Blocks of text in, effects on the session out; shows everything on the face's screen."""

    def __init__(self, face: CommandContext, client: Client, session: str, answer: InputSource) -> None:
        self._face, self._client, self._answer = face, client, answer
        self.session = session
        self.exit: int = ExitCode.OK  # of the last eval
        self._slash_commands: dict[str, Callable[[], None]] = {
            "/reset": self._reset,
            "/info": self._info,
            "/jobs": self._jobs,
            "/interrupt": self._interrupt,
            "/help": lambda: face.screen.block(HELP),
        }

    def handle_block(self, block: str) -> bool:
        """Do what a block says; False when it says to leave. Errors are shown, not raised."""
        self._face.screen.note_terminal_echo(line=True)
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
                    self._face,
                    self._client,
                    request_fields.eval_fields(block, self.session),
                    [self._answer],
                    confirm_at_terminal,
                ).run()
        except ReplError as error:
            self._face.fail(error)
        return True

    def _run_slash_command(self, word: str) -> None:
        action = self._slash_commands.get(word)
        if action is None:
            self._face.screen.notice(f"no command {word.split()[0]}; /help lists them")
        else:
            action()

    def _reset(self) -> None:
        reply = self._client.reset(self.session)
        self._face.screen.notice(f"a fresh worker (epoch {reply.epoch}); all names are gone")

    def _info(self) -> None:
        for line in format_facts(self._client.info(self.session)):
            self._face.screen.line(line)

    def _jobs(self) -> None:
        show_jobs(self._face.screen, self._client.jobs(self.session))

    def _interrupt(self) -> None:
        reply = self._client.interrupt(self.session)
        self._face.screen.notice("interrupted" if reply.interrupted else "nothing to interrupt")
