"""The dialogue of `replctl attach` with a session: blocks, slash commands, and an eval that runs already."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from replctl.acp.slash_commands import SlashCall, SlashCommands, SlashContext
from replctl.client import request_fields
from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.client.sync import Client
from replctl.commands.attach_blocks import BlockOutcome, is_leaving, is_unfinished
from replctl.commands.attach_magics import (
    FileToEdit,
    Magic,
    NameQuestion,
    ShellCommand,
    TimedCode,
    parse_magic,
    shell_code,
    source_code,
)
from replctl.commands.context import CommandContext
from replctl.commands.foreground import ForegroundEval, InputSource, confirm_at_terminal, show_result
from replctl.commands.images import ANY_IMAGE
from replctl.commands.inspection import describe_name
from replctl.commands.params import read_source
from replctl.commands.terminal_images import find_encoder, show_images
from replctl.durations import format_duration
from replwire.faults import ExitCode
from replwire.replies import Approval

FOLLOW_SECONDS = 86_400.0  # the longest wait that a broker may allow; its own limit is usually less
_MAX_DOC_LINES = 200
_KEYS = """\
name?        signature and docs of a name; name?? its source too
%time CODE   run CODE and show how long it took; %load FILE puts a local file into the prompt
!COMMAND     run a shell command in the session (Python)
Enter        run the block, or go on with it if it is not complete; an empty line ends it
Alt-Enter    add a line
Tab          complete; Ctrl-R searches the history, Right takes the suggestion
Ctrl-C       clear the line, or interrupt the running eval
Ctrl-\\       detach: the running eval goes on
Ctrl-D       leave (also /quit, exit); the session keeps running"""


class Detached(Exception):
    """The user leaves while an eval runs."""


class SessionDialogue:
    """Runs blocks of input in a session and prints the results.

    Args:
        context: The command.
        client: A connected client.
        session: The session, which exists.
        runtime: Its runtime: `python`, `node`, `bash`, or an environment.
        answer: The source of input for the code.
    """

    def __init__(
        self, context: CommandContext, client: Client, session: str, runtime: str, answer: InputSource
    ) -> None:
        self._context, self._client, self._answer = context, client, answer
        self.session, self.runtime = session, runtime
        self.exit: int = ExitCode.OK  # exit code of the last eval
        self.slash_commands = SlashCommands()
        self.insertion = ""  # text for the next prompt, for BlockOutcome.MORE
        self.own_evals: set[int] = set()
        self._is_unfinished = False
        self._encoder = find_encoder(os.environ) if os.isatty(1) else None

    def handle_block(self, block: str) -> BlockOutcome:
        """Run a block; errors are printed."""
        self._context.screen.note_terminal_echo(line=True)
        if is_leaving(block):
            return BlockOutcome.LEAVE
        if not block.strip():
            return BlockOutcome.DONE
        try:
            if (call := self.slash_commands.parse(block)) is not None:
                self._call(call)
                return BlockOutcome.DONE
            if (magic := parse_magic(block, self.runtime)) is not None:
                return self._perform(magic)
            return self._run(block)
        except ReplError as error:
            self._context.fail(error)
            return BlockOutcome.DONE

    def _perform(self, magic: Magic) -> BlockOutcome:
        match magic:
            case NameQuestion():
                self._describe(magic)
            case ShellCommand():
                return self._run(shell_code(magic.command))
            case TimedCode():
                return self._run(magic.code, is_timed=True)
            case FileToEdit():
                try:
                    self.insertion = read_source(os.path.expanduser(magic.path)).rstrip("\n") + "\n"
                except click.UsageError as error:
                    self._context.screen.notice(error.message)
                    return BlockOutcome.DONE
                return BlockOutcome.MORE
        return BlockOutcome.DONE

    def _describe(self, question: NameQuestion) -> None:
        reply = self._client.lookup(question.name, self.session)
        if not reply.found:
            self._context.screen.notice(f"name {question.name!r} is not defined in session {self.session!r}")
            return
        for line in describe_name(reply, question.name, _MAX_DOC_LINES):
            self._context.screen.line(line)
        if question.with_source and self.runtime != "node":
            result = self._client.eval(source_code(question.name), self.session, store_history=False)
            self._note_own(result)
            self._context.screen.block(result.out.rstrip("\n") if result.ok else "no source is available")

    def _note_own(self, result: Result) -> None:
        if result.eval_id is not None:
            self.own_evals.add(result.eval_id)

    def _run(self, block: str, is_timed: bool = False) -> BlockOutcome:
        def report(context: CommandContext, result: Result) -> int:
            self._note_own(result)
            self._is_unfinished = is_unfinished(result, block)
            if self._is_unfinished:
                return ExitCode.OK
            code = show_result(context, result)
            show_images(context.screen, result, self._encoder)
            if is_timed and result.duration_ms is not None:
                context.screen.notice(f"took {format_duration(result.duration_ms)}")
            self.insertion = ""
            return code

        # With a wait the limit of a job holds: nobody leaves a prompt because 30 s are over.
        fields = request_fields.eval_fields(block, self.session, wait=FOLLOW_SECONDS, mime=(ANY_IMAGE,))
        self._is_unfinished = False
        self.exit = ForegroundEval(
            self._context, self._client, fields, [self._answer], confirm_at_terminal, report
        ).run()
        if not self._is_unfinished:
            return BlockOutcome.DONE
        self.insertion = block + "\n"
        return BlockOutcome.MORE

    def follow_running(self) -> None:
        """Show what the session's running eval has printed, and go on with it to its end."""
        jobs = self._client.jobs(self.session)
        running = next((job for job in jobs if job.state in ("starting", "running")), None)
        if running is None:
            return
        first = next(iter(running.code.strip().splitlines()), "")
        who = f" of {running.agent}" if running.agent else ""
        keys = "Ctrl-C interrupts it, Ctrl-\\ leaves it running"
        opening = f"eval {running.eval_id}{who} is running: {first[:60]}\n{keys}"
        fields = request_fields.read_fields(self.session, running.eval_id, wait=FOLLOW_SECONDS)
        ForegroundEval(self._context, self._client, fields, [self._answer], op="read", opening=opening).run()

    def _call(self, call: SlashCall) -> None:
        command = call.command
        if command is None:
            self._context.screen.notice(f"unknown command /{call.name}; /help lists the commands")
            return

        async def approve(approval: Approval) -> bool:
            return confirm_at_terminal(approval)

        async def run() -> str:
            async with AsyncClient(self._client.address.endpoint, self._context.agent, start=False) as client:
                at = SlashContext(client, self.session, "auto", self.slash_commands, approve)
                return await command.run(at, call.argument)

        self._context.screen.block(asyncio.run(run()))
        if call.name == "help":
            self._context.screen.block(_KEYS)


@contextmanager
def detach_on_quit_signal() -> Iterator[None]:
    """Let Ctrl-\\ raise Detached instead of ending the process."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise Detached

    before = signal.signal(signal.SIGQUIT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)
