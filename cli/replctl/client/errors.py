"""Exceptions of the client library. Codes and exit codes come from `replwire.faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replwire.faults import FAULTS, ExitCode, exit_code_for, find_fault

if TYPE_CHECKING:
    from replctl.client.result import Result
    from replwire.replies import Approval, Reply


class ReplError(Exception):
    """The request was refused, failed, or could not reach a broker.

    Attributes:
        code: A word of the fault table, such as `session-not-found`.
        message: A sentence for people.
        reply: The broker's final reply, if there was one.
        exit: The exit code of the command line.
        result: For an eval, the output and result so far.
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
        """Milliseconds to wait before a retry is worthwhile, or None."""
        return self.reply.retry_after_ms if self.reply is not None else None

    @property
    def approval(self) -> Approval | None:
        """The decision that a hook asks a person for, if that is why the request was refused."""
        return self.reply.approval if self.reply is not None else None

    @property
    def hint(self) -> str | None:
        """The broker's advice, or None."""
        return self.reply.hint if self.reply is not None else None


class CodeError(ReplError):
    """The code of an eval raised an exception; raised by `Result.raise_for_error` only.

    `exception_type` and `exception_message` are those of the exception; `message` joins both.
    """

    def __init__(self, type: str, message: str, result: Result) -> None:
        super().__init__("error", f"{type}: {message}" if message else type, exit=ExitCode.RAISED, result=result)
        self.exception_type = type
        self.exception_message = message

    def __str__(self) -> str:
        return self.message


def error_from_reply(reply: Reply, result: Result | None = None) -> ReplError:
    """Return the error for a final reply with `error` in its status."""
    status = reply.status or []
    fault = find_fault(status)
    word = fault.code if fault is not None else "error"
    return ReplError(word, reply.err or (fault.meaning if fault else "failed"), reply, exit_code_for(status), result)
