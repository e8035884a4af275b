"""One eval in the foreground: live output, input for the code, Ctrl-C, and its outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from replctl.client import protocol
from replctl.client.errors import ReplError
from replctl.client.result import OnOutput, PendingRequest, Result
from replctl.client.sync import Client
from replctl.commands.context import CommandContext
from replctl.commands.messages import end_notices, input_needed_notice, opening_notices, status_notice
from replctl.commands.output import CommandOutput
from replwire.faults import ExitCode
from replwire.replies import Approval, Reply

T = TypeVar("T")


class InputSource(NamedTuple):
    """A source of input for the code. `read` returns a text, or None at the end.

    `read` is called when `descriptor` is readable, or at any time if `descriptor` is None.
    """

    read: Callable[[], str | None]
    descriptor: int | None = None  # None: `read` may be called at any time


def read_typed_line() -> str | None:
    """Return a line typed at the terminal."""
    return os.read(0, 65536).decode("utf-8", "replace") or None


def single_input(text: str) -> InputSource:
    """Return an input source that gives this text once."""
    texts = [text]
    return InputSource(lambda: texts.pop() if texts else None)


TERMINAL = InputSource(read_typed_line, descriptor=0)


def confirm_at_terminal(approval: Approval) -> bool:
    """Ask the user at the terminal. Anything but a clear yes is a no."""
    CommandOutput().block(f"{approval.title} {approval.reason} (hook {approval.hook})", "err")
    try:
        return click.confirm("Run it?", default=False, err=True)
    except click.Abort:
        return False


def with_approval(context: CommandContext, attempt: Callable[[str | None], T]) -> T:
    """Return what an attempt returns; repeat it with the id of each approval that the user gives at the terminal.

    Raises:
        ReplError: The attempt failed, or the user has not approved, or there is no terminal.
    """
    approval = None
    while True:
        try:
            return attempt(approval)
        except ReplError as error:
            can_ask = os.isatty(0) and os.isatty(2) and not context.json
            if error.approval is None or not can_ask or not confirm_at_terminal(error.approval):
                raise
            approval = error.approval.id


def empty_eval_json(session: str | None) -> dict[str, Any]:
    """Return an eval's JSON output with every field unset, for errors."""
    data: dict[str, Any] = msgspec.to_builtins(Result(session=session))
    return data


def show_result(
    context: CommandContext,
    result: Result,
    show_value: Callable[[str], None] | None = None,
    status: int | None = None,
) -> int:
    """Print the outcome of an eval after its output, and return the exit code.

    Args:
        context: The command.
        result: The eval's result.
        show_value: Prints the value; None to print it unchanged.
        status: Exit code to return instead of the outcome's.
    """
    code = int(result.exit) if status is None else status
    if context.json:
        context.screen.json({**msgspec.to_builtins(result), "code": result.code, "exit": code})
        return code
    for notice in opening_notices(result):
        context.screen.notice(notice)
    if result.traceback:
        context.screen.block(result.traceback.rstrip("\n"), "err")
    elif result.exit is ExitCode.RAISED and result.error:
        context.screen.block(result.error, "err")
    if result.display_value is not None:
        (show_value or context.screen.value)(result.display_value)
    for notice in end_notices(result):
        context.screen.notice(notice)
    return code


class ForegroundEval:
    """Sends an eval and follows it to its end.

    Args:
        context: The command.
        client: A connected client.
        fields: Fields of the eval.
        answers: Input sources, used one after the other when the code waits for input.
        decide: Decides when a hook asks for a person's approval.
        report: Prints the outcome and returns the exit code.
        op: `eval`, or `read` to follow an eval that another client has sent.
        opening: A message to print once Ctrl-C interrupts the eval.
    """

    def __init__(
        self,
        context: CommandContext,
        client: Client,
        fields: dict[str, Any],
        answers: Iterable[InputSource] = (),
        decide: Callable[[Approval], bool] | None = None,
        report: Callable[[CommandContext, Result], int] = show_result,
        op: str = "eval",
        opening: str | None = None,
    ) -> None:
        self._op, self._opening = op, opening
        self._context, self._client, self._fields = context, client, fields
        self._report = report
        self._inputs = list(answers)
        self._decide = decide
        self._session: str | None = fields["session"]
        self._gathering: PendingRequest | None = None
        self._interrupt_count = 0
        self._notice_shown = False  # the notice was shown live
        self._input_session: str | None = None  # the session whose code waits for input

    def run(self) -> int:
        """Run the eval and return the exit code."""
        live = None if self._context.json else self._context.screen.live
        before = signal.signal(signal.SIGINT, self._on_sigint)
        try:
            while (result := self._attempt(live)) is None:
                pass
            if self._notice_shown and not self._context.json:
                result.notice = None
            return self._report(self._context, result)
        except KeyboardInterrupt:
            return self._report_detached()
        except ReplError as error:
            return self._report_error(error)
        finally:
            signal.signal(signal.SIGINT, before)

    def _attempt(self, live: OnOutput | None) -> Result | None:
        """Return the result; None if the eval must be sent again because a person approved it."""
        pending = self._gathering = self._client.send(self._op, self._fields, live, self._on_status)
        if self._opening is not None:
            self._notice(self._opening)
        while not self._client.wait(pending, watch=self._input_descriptor):
            self._send_input()
            if self._input_session and not self._inputs:
                self._notice(input_needed_notice(self._input_session))
        try:
            result = protocol.eval_result(pending)
        except ReplError as error:
            self._gathering = None  # nothing runs while the user is asked: Ctrl-C means no
            if error.approval is None or self._decide is None or not self._decide(error.approval):
                raise
            self._fields["approval"] = error.approval.id
            return None
        if self._context.json:
            self._client.fetch_dropped(pending)
        return result

    def _on_sigint(self, _number: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-C: the first interrupts the eval and waits for its end, the second leaves at once."""
        self._interrupt_count += 1
        self._context.screen.note_terminal_echo(line=False)
        if self._interrupt_count > 1 or self._gathering is None:
            raise KeyboardInterrupt
        if self._op == "read":
            target = {"session": self._session, "interrupt_id": self._fields["eval_id"]}
        else:
            target = {"request_id": self._gathering.request_id}
        self._client.send_nowait("interrupt", target)

    def _report_detached(self) -> int:
        pending = self._gathering
        where = f" in session {self._session!r}" if self._session else ""
        self._context.screen.notice(f"left; the eval keeps running{where}")
        if self._context.json:
            result = pending.finalize() if pending is not None else Result(session=self._session)
            self._context.screen.json({**msgspec.to_builtins(result), "code": None, "exit": ExitCode.INTERRUPTED})
        return ExitCode.INTERRUPTED

    def _report_error(self, error: ReplError) -> int:
        if not self._context.json:
            return self._context.fail(error)
        data = msgspec.to_builtins(error.result or Result(session=self._session))
        reply = error.reply
        data["status"] = (reply.status if reply is not None else None) or ["done", "error", error.code]
        data |= {"code": error.code, "exit": error.exit, "error": error.message, "err": data["err"] or error.message}
        data["retry-after-ms"] = error.retry_after_ms
        self._context.screen.json(data)
        return error.exit

    def _input_descriptor(self) -> int | None:
        return self._inputs[0].descriptor if self._input_session and self._inputs else None

    def _on_status(self, reply: Reply) -> None:
        session = self._session or reply.name or reply.session
        if "need-input" in (reply.status or ()) and session is not None:
            self._input_session = session
            while self._inputs and self._inputs[0].descriptor is None and self._input_session:
                self._send_input()
            if self._input_session and not self._inputs:
                self._notice(input_needed_notice(session))
        elif (text := status_notice(reply)) is not None:
            self._notice(text)
            self._notice_shown = self._notice_shown or reply.notice is not None

    def _send_input(self) -> None:
        """Send input from the first source; at its end switch to the next."""
        if (text := self._inputs[0].read()) is None:
            self._inputs.pop(0)
            return
        self._context.screen.note_terminal_echo(line=True)
        self._client.send_nowait("stdin", {"session": self._input_session, "input": text})
        self._input_session = None

    def _notice(self, text: str) -> None:
        if not self._context.json:
            self._context.screen.notice(text)
