"""The dialogue of `replctl attach` with a session: blocks, slash commands, and an eval that runs already."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from replctl.acp.slash_commands import SlashCall, SlashCommands, SlashContext
from replctl.client import request_fields
from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.client.sync import Client
from replctl.commands.attach_blocks import BlockOutcome, is_leaving, is_unfinished
from replctl.commands.context import CommandContext
from replctl.commands.foreground import ForegroundEval, InputSource, confirm_at_terminal, show_result
from replwire.faults import ExitCode
from replwire.replies import Approval

FOLLOW_SECONDS = 86_400.0  # the longest wait that a broker may allow; its own limit is usually less
_KEYS = """\
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
        self._unfinished = False

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
            return self._run(block)
        except ReplError as error:
            self._context.fail(error)
            return BlockOutcome.DONE

    def _run(self, block: str) -> BlockOutcome:
        def report(context: CommandContext, result: Result) -> int:
            self._unfinished = is_unfinished(result, block)
            return ExitCode.OK if self._unfinished else show_result(context, result)

        # With a wait the limit of a job holds: nobody leaves a prompt because 30 s are over.
        fields = request_fields.eval_fields(block, self.session, wait=FOLLOW_SECONDS)
        self._unfinished = False
        self.exit = ForegroundEval(
            self._context, self._client, fields, [self._answer], confirm_at_terminal, report
        ).run()
        return BlockOutcome.MORE if self._unfinished else BlockOutcome.DONE

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
