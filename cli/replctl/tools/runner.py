"""Runners of tool calls over `Client` and `AsyncClient`. All I/O of tools is here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from replctl.client.aio import AsyncClient, OnApproval
from replctl.client.errors import ReplError
from replctl.client.result import OnOutput, OnStatus, PendingRequest
from replctl.client.sync import Client
from replctl.tools.base import ToolCall, ToolRequest, ToolResponse, ToolResult
from replwire.replies import Approval, Reply

OnAbandoned = Callable[[PendingRequest], None]


def run_tool(steps: ToolCall, client: Client, on_output: OnOutput | None = None) -> ToolResult:
    """Run one call to its end. Ctrl-C interrupts the code."""
    step: Callable[[], ToolRequest] = partial(next, steps)
    while True:
        try:
            ask = step()
        except StopIteration as end:
            answer: ToolResult = end.value
            return answer
        try:
            step = partial(steps.send, _exchange(client, ask, on_output))
        except ReplError as error:
            step = partial(steps.throw, error)


async def run_tool_async(
    steps: ToolCall,
    client: AsyncClient,
    on_output: OnOutput | None = None,
    on_abandoned: OnAbandoned | None = None,
    on_approval: OnApproval | None = None,
    traceparent: str | None = None,
) -> ToolResult:
    """Run one call to its end in an event loop.

    Args:
        steps: The call.
        client: A connected client.
        on_output: Called with the stream and the text as it arrives.
        on_abandoned: Called with the pending request if the task is cancelled.
        on_approval: Decides when a hook asks for a person's approval.
        traceparent: Trace context, sent along with code.
    """
    step: Callable[[], ToolRequest] = partial(next, steps)
    while True:
        try:
            ask = step()
        except StopIteration as end:
            answer: ToolResult = end.value
            return answer
        if ask.runs_code and traceparent is not None:
            ask.fields["traceparent"] = traceparent
        try:
            got = await _aexchange(client, ask, on_output, on_abandoned)
            while on_approval and (approval := _approval_in(got)) is not None and await on_approval(approval):
                again = ask._replace(fields={**ask.fields, "approval": approval.id})
                got = await _aexchange(client, again, on_output, on_abandoned)
            step = partial(steps.send, got)
        except ReplError as error:
            step = partial(steps.throw, error)


def _approval_in(got: ToolResponse) -> Approval | None:
    return None if got.pending.final is None else got.pending.final.approval


def _exchange(client: Client, ask: ToolRequest, on_output: OnOutput | None) -> ToolResponse:
    asking: list[Reply] = []
    deadline = time.monotonic() + ask.timeout
    pending = client.send(ask.op, ask.fields, on_output, _input_watcher(ask, asking.append))
    try:
        while pending.final is None and pending.error is None and not asking and time.monotonic() < deadline:
            client.poll(deadline)
        if not asking:
            client.wait(pending, 0)
    except KeyboardInterrupt:
        if ask.runs_code:
            client.send_nowait("interrupt", {"request_id": pending.request_id})
        raise
    return _build_response(pending, asking)


async def _aexchange(
    client: AsyncClient, ask: ToolRequest, on_output: OnOutput | None, on_abandoned: OnAbandoned | None
) -> ToolResponse:
    asking: list[Reply] = []
    pending: PendingRequest | None = None

    def asks(reply: Reply) -> None:
        asking.append(reply)
        if pending is not None:
            client.abandon(pending)

    pending = await client.send(ask.op, ask.fields, on_output, _input_watcher(ask, asks))
    if asking:  # it arrived while the request was being sent
        client.abandon(pending)
    try:
        await client.wait(pending, ask.timeout)
    except asyncio.CancelledError:
        if ask.runs_code and on_abandoned is not None:
            on_abandoned(pending)
        raise
    return _build_response(pending, asking)


def _build_response(pending: PendingRequest, asking: list[Reply]) -> ToolResponse:
    """Return the outcome. An eval that has ended since does not wait for input any more."""
    last = pending.final
    return ToolResponse(pending, asking[0] if asking and (last is None or "running" in (last.status or ())) else None)


def _input_watcher(ask: ToolRequest, asks: Callable[[Reply], None]) -> OnStatus | None:
    if not ask.until_input:
        return None

    def on_status(reply: Reply) -> None:
        if "need-input" in (reply.status or ()):
            asks(reply)

    return on_status
