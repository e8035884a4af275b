"""Building blocks of an extension's operations: requests to the broker, output to the caller, and refusals."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from replwire.faults import FAULTS
from replwire.replies import Reply


class OperationCall(NamedTuple):
    """A request that an operation yields; the broker serves it with the rights of the operation's caller.

    Attributes:
        op: The operation to perform.
        fields: Its fields. Agent, binding, project and mode are those of the caller.
    """

    op: str
    fields: dict[str, Any]


class OperationOutput(NamedTuple):
    """Text that an operation yields, sent to the caller at once as `out`."""

    text: str


class OperationRefused(ValueError):
    """Refusal of a request by an operation.

    Args:
        err: Message for the caller.
        code: A fault code of the protocol; another one counts as the default.
    """

    def __init__(self, err: str, code: str = "invalid-request") -> None:
        super().__init__(err)
        self.code = code if code in FAULTS else "invalid-request"


class OperationReplies(NamedTuple):
    """The replies to an `OperationCall`, in order; the last is the final one."""

    replies: list[Reply]

    @property
    def final(self) -> Reply:
        """The final reply."""
        return self.replies[-1]

    @property
    def is_ok(self) -> bool:
        """True if the request was served without an error."""
        return "error" not in (self.final.status or ())

    def check(self) -> OperationReplies:
        """Return the replies of a request that was served.

        Raises:
            OperationRefused: It was not, with the same code and message.
        """
        if self.is_ok:
            return self
        code = next((each for each in self.final.status or () if each in FAULTS), "")
        raise OperationRefused(self.final.err or "", code)

    @property
    def value(self) -> str | None:
        """The value of an eval."""
        return next((each.value for each in self.replies if each.value is not None), None)

    @property
    def out(self) -> str:
        """Text that the code printed."""
        return "".join(each.out for each in self.replies if each.out is not None)


class OperationContext(NamedTuple):
    """The caller of an operation.

    Attributes:
        identity: The identity that the connection has proven.
        agent: The agent's label, if it has one.
        session: The session that the request names, as the caller calls it.
    """

    identity: str
    agent: str | None
    session: str | None


def call(op: str, **fields: Any) -> Generator[OperationCall, OperationReplies, OperationReplies]:
    """Send a request to the broker: `replies = yield from call("eval", session="work", code="1 + 1")`.

    Args:
        op: The operation.
        fields: Its fields, with underscores for hyphens; None leaves one out.
    """
    given = {name.replace("_", "-"): value for name, value in fields.items() if value is not None}
    return (yield OperationCall(op, given))
