"""Request flows: the steps of client operations as generators, which both clients drive. No I/O."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from replctl.client.errors import ReplError
from replctl.client.protocol import eval_result, final_reply
from replctl.client.request_fields import read_fields
from replctl.client.result import OnOutput, OnStatus, OutputPages, PendingRequest, Result
from replwire.replies import Approval, Reply

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0  # seconds for a reply that does not depend on code; the broker's own limits are lower
UNBOUNDED_OPS = ("clone", "env", "save")  # operations without a time limit


class Exchange(NamedTuple):
    """A request that a client sends and waits for, at most `timeout` seconds (None: no limit)."""

    op: str
    fields: dict[str, Any]
    timeout: float | None
    on_output: OnOutput | None = None
    on_status: OnStatus | None = None


class Pause(NamedTuple):
    """A time to wait, in seconds."""

    seconds: float


# A flow yields an Exchange and receives its PendingRequest, an Approval and receives the decision, or a Pause.
Flow = Generator[Exchange | Approval | Pause, Any, T]


def request(op: str, fields: dict[str, Any]) -> Flow[Reply]:
    """Send an operation and return its final reply."""
    pending: PendingRequest = yield Exchange(op, fields, None if op in UNBOUNDED_OPS else DEFAULT_TIMEOUT)
    return final_reply(pending)


def request_patiently(op: str, fields: dict[str, Any]) -> Flow[Reply]:
    """Send an operation like `request`, again when the broker says that there were too many."""
    while True:
        try:
            return (yield from request(op, fields))
        except ReplError as error:
            if error.code != "rate-limited" or error.retry_after_ms is None:
                raise
            yield Pause(error.retry_after_ms / 1000)


def run(op: str, fields: dict[str, Any], timeout: float | None, on_output: OnOutput | None = None) -> Flow[Result]:
    """Send an operation that runs or reads an eval, and return its result."""
    pending: PendingRequest = yield Exchange(op, fields, timeout, on_output)
    return eval_result(pending)


def evaluate(fields: dict[str, Any], on_output: OnOutput | None, on_status: OnStatus | None) -> Flow[Result]:
    """Run code, again once a person has approved it, and fetch live output that was dropped on the way."""
    while True:
        pending: PendingRequest = yield Exchange("eval", fields, None, on_output, on_status)
        try:
            result = eval_result(pending)
        except ReplError as error:
            if error.approval is None or not (yield error.approval):
                raise
            fields["approval"] = error.approval.id
        else:
            yield from fetch_dropped(pending)
            return result


def fetch_dropped(pending: PendingRequest) -> Flow[None]:
    """Fetch live output that was dropped on the way, once the eval has ended."""
    result = pending.result
    if not pending.dropped_bytes or result.session is None or result.eval_id is None or result.ephemeral:
        return
    pages, more = OutputPages(), True
    while more:
        fields = read_fields(result.session, result.eval_id, offset=pages.offset, max_bytes=OutputPages.BYTES)
        more = pages.add((yield from run("read", fields, DEFAULT_TIMEOUT)))
    pending.fill_gaps(pages)
