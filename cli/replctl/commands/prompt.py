"""Interactive prompt logic without the terminal: blocks of input and what they do."""

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
        action = self._slash_commands.get(word)
        if action is None:
            self._context.screen.notice(f"unknown command {word.split()[0]}; /help lists the commands")
        else:
            action()

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
