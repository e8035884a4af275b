"""One eval in the foreground: live output, input for the code, Ctrl-C, and how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple

import click
import msgspec

from replctl.client import talk
from replctl.client.errors import ReplError
from replctl.client.result import Gathering, OnOutput, Result
from replctl.client.sync import Client
from replctl.commands.common import Face
from replctl.commands.screen import Screen
from replctl.commands.told import end_notices, opening_notices, status_notice, waits_for_input
from replwire.faults import Exit
from replwire.replies import Approval, Reply


class Answer(NamedTuple):
    """Where input for the code comes from: `read` gives it, None at its end. It is called when `watch` can be read."""

    read: Callable[[], str | None]
    watch: int | None = None  # None: `read` may be called at any time


def typed_line() -> str | None:
    """What was typed at our terminal: a line, as the terminal hands it over."""
    return os.read(0, 65536).decode("utf-8", "replace") or None


def once(text: str) -> Answer:
    """This text, and then no more."""
    texts = [text]
    return Answer(lambda: texts.pop() if texts else None)


TERMINAL = Answer(typed_line, watch=0)


def at_terminal(approval: Approval) -> bool:
    """Ask who sits at the terminal. Anything but a clear yes is a no."""
    Screen().block(f"{approval.title} {approval.reason} (hook {approval.hook})", "err")
    try:
        return click.confirm("Run it?", default=False, err=True)
    except click.Abort:
        return False


def blank(session: str | None) -> dict[str, Any]:
    """An eval's JSON without an answer: every field, none of them set."""
    data: dict[str, Any] = msgspec.to_builtins(Result(session=session))
    return data


def report(face: Face, result: Result, show_value: Callable[[str], None] | None = None) -> int:
    """Show how an eval ended, its output having been shown; the exit code. `show_value`: not as the value's text is."""
    if face.json:
        face.screen.json({**msgspec.to_builtins(result), "word": result.word, "exit": result.exit})
        return result.exit
    for notice in opening_notices(result):
        face.screen.notice(notice)
    if result.traceback:
        face.screen.block(result.traceback.rstrip("\n"), "err")
    elif result.exit is Exit.RAISED and result.error:
        face.screen.block(result.error, "err")
    if result.shown is not None:
        (show_value or face.screen.value)(result.shown)
    for notice in end_notices(result):
        face.screen.notice(notice)
    return result.exit


class Running:
    """Sends an eval and sees it through. `answers` are asked, each to its end, when the code waits for input, `decide`
    when a hook wants a person's word."""

    def __init__(
        self,
        face: Face,
        client: Client,
        fields: dict[str, Any],
        answers: Iterable[Answer] = (),
        decide: Callable[[Approval], bool] | None = None,
    ) -> None:
        self._face, self._client, self._fields = face, client, fields
        self._answers = list(answers)
        self._decide = decide
        self._session: str | None = fields["session"]
        self._gathering: Gathering | None = None
        self._stops = 0
        self._told = False  # a notice, as it came
        self._asking: str | None = None  # the session whose code waits for input that we can give

    def go(self) -> int:
        """Send it, show it, return the exit code."""
        live = None if self._face.json else self._face.screen.live
        before = signal.signal(signal.SIGINT, self._stop)
        try:
            while (result := self._tried(live)) is None:
                pass
            if self._told and not self._face.json:
                result.notice = None
            return report(self._face, result)
        except KeyboardInterrupt:
            return self._left()
        except ReplError as error:
            return self._failed(error)
        finally:
            signal.signal(signal.SIGINT, before)

    def _tried(self, live: OnOutput | None) -> Result | None:
        """How it ended; None when it is to be sent again, because a person said yes to a hook's question."""
        gathering = self._gathering = self._client.begin("eval", self._fields, live, self._status)
        while not self._client.finish(gathering, watch=self._watch):
            self._give()
            if self._asking and not self._answers:
                self._notice(waits_for_input(self._asking))
        try:
            result = talk.result(gathering)
        except ReplError as error:
            self._gathering = None  # nothing runs while somebody is asked: Ctrl-C is a no
            if error.approval is None or self._decide is None or not self._decide(error.approval):
                raise
            self._fields["approval"] = error.approval.id
            return None
        if self._face.json:
            self._client.fetch_missed(gathering)
        return result

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """The first Ctrl-C interrupts the eval and its end is awaited; the second leaves at once."""
        self._stops += 1
        self._face.screen.typed(line=False)
        if self._stops > 1 or self._gathering is None:
            raise KeyboardInterrupt
        self._client.tell("interrupt", {"request_id": self._gathering.request_id})

    def _left(self) -> int:
        gathering = self._gathering
        where = f" in session {self._session!r}" if self._session else ""
        self._face.screen.notice(f"left; the eval goes on{where}")
        if self._face.json:
            result = gathering.settle() if gathering is not None else Result(session=self._session)
            self._face.screen.json({**msgspec.to_builtins(result), "word": None, "exit": Exit.INTERRUPTED})
        return Exit.INTERRUPTED

    def _failed(self, error: ReplError) -> int:
        if not self._face.json:
            return self._face.fail(error)
        data = msgspec.to_builtins(error.result or Result(session=self._session))
        reply = error.reply
        data["status"] = (reply.status if reply is not None else None) or ["done", "error", error.word]
        data |= {"word": error.word, "exit": error.exit, "error": error.err, "err": data["err"] or error.err}
        data["retry-after-ms"] = error.retry_after_ms
        self._face.screen.json(data)
        return error.exit

    def _watch(self) -> int | None:
        return self._answers[0].watch if self._asking and self._answers else None

    def _status(self, reply: Reply) -> None:
        session = self._session or reply.name or reply.session
        if "need-input" in (reply.status or ()) and session is not None:
            self._asking = session
            while self._answers and self._answers[0].watch is None and self._asking:
                self._give()
            if self._asking and not self._answers:
                self._notice(waits_for_input(session))
        elif (text := status_notice(reply)) is not None:
            self._notice(text)
            self._told = self._told or reply.notice is not None

    def _give(self) -> None:
        """Send the first answer's input; at its end the next one's turn has come."""
        if (text := self._answers[0].read()) is None:
            self._answers.pop(0)
            return
        self._face.screen.typed(line=True)
        self._client.tell("stdin", {"session": self._asking, "input": text})
        self._asking = None

    def _notice(self, text: str) -> None:
        if not self._face.json:
            self._face.screen.notice(text)
