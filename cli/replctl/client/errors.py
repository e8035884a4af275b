"""What the client library raises. Words and exit codes come from the one table, `replwire.faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replwire.faults import FAULTS, ExitCode, exit_code_for, find_fault

if TYPE_CHECKING:
    from replctl.client.result import Result
    from replwire.replies import Approval, Reply


class ReplError(Exception):
    """The request was refused, failed, or could not be brought to a broker.

    `word` is a word of the fault table, `err` the sentence. `reply` is the broker's answer where there was one,
    `retry_after_ms` says when it is worth asking again, `exit` is the exit code of the command line. For an eval
    `result` holds what had come until then.
    """

    def __init__(
        self,
        code: str,
        message: str,
        reply: Reply | None = None,
        exit: ExitCode | None = None,
        result: Result | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reply = reply
        self.result = result
        self.exit = exit if exit is not None else FAULTS[code].exit

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def retry_after_ms(self) -> int | None:
        """Milliseconds after which it is worth asking again, or None."""
        return self.reply.retry_after_ms if self.reply is not None else None

    @property
    def approval(self) -> Approval | None:
        """What a hook wants a person to decide, when that is why it was refused."""
        return self.reply.approval if self.reply is not None else None

    @property
    def hint(self) -> str | None:
        """What to do about it, in the broker's words, or None."""
        return self.reply.hint if self.reply is not None else None


class CodeError(ReplError):
    """The code of an eval raised; `type` and `message` are those of its exception. From `raise_for_error` only."""

    def __init__(self, type: str, message: str, result: Result) -> None:
        super().__init__("error", f"{type}: {message}" if message else type, exit=ExitCode.RAISED, result=result)
        self.exception_type = type
        self.exception_message = message

    def __str__(self) -> str:
        return self.message


def error_from_reply(reply: Reply, result: Result | None = None) -> ReplError:
    """The error that a terminal reply with `error` in its status stands for."""
    status = reply.status or []
    fault = find_fault(status)
    word = fault.code if fault is not None else "error"
    return ReplError(word, reply.err or (fault.meaning if fault else "failed"), reply, exit_code_for(status), result)
