"""Two drivers for a tool's steps: over `Client`, and over `AsyncClient`. All I/O of tools is here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from replctl.client.aio import AsyncClient, OnApproval
from replctl.client.errors import ReplError
from replctl.client.result import Gathering, OnOutput, OnStatus
from replctl.client.sync import Client
from replctl.tools.base import Answer, Ask, Got, Steps
from replwire.replies import Approval, Reply

GoneAway = Callable[[Gathering], None]


def drive(steps: Steps, client: Client, on_output: OnOutput | None = None) -> Answer:
    """One call to its end. Ctrl-C interrupts the code it waits for."""
    step: Callable[[], Ask] = partial(next, steps)
    while True:
        try:
            ask = step()
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        try:
            step = partial(steps.send, _exchange(client, ask, on_output))
        except ReplError as error:
            step = partial(steps.throw, error)


async def adrive(
    steps: Steps,
    client: AsyncClient,
    on_output: OnOutput | None = None,
    gone_away: GoneAway | None = None,
    on_approval: OnApproval | None = None,
    traceparent: str | None = None,
) -> Answer:
    """The same in an event loop. When its task is cancelled, `gone_away` is told which request was under way. When a
    hook wants a person's word, `on_approval` gets it. `traceparent` goes along with the code."""
    step: Callable[[], Ask] = partial(next, steps)
    while True:
        try:
            ask = step()
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        if ask.code and traceparent is not None:
            ask.fields["traceparent"] = traceparent
        try:
            got = await _aexchange(client, ask, on_output, gone_away)
            while on_approval and (approval := _asked(got)) is not None and await on_approval(approval):
                again = ask._replace(fields={**ask.fields, "approval": approval.id})
                got = await _aexchange(client, again, on_output, gone_away)
            step = partial(steps.send, got)
        except ReplError as error:
            step = partial(steps.throw, error)


def _asked(got: Got) -> Approval | None:
    return None if got.gathering.last is None else got.gathering.last.approval


def _exchange(client: Client, ask: Ask, on_output: OnOutput | None) -> Got:
    asking: list[Reply] = []
    deadline = time.monotonic() + ask.patience
    gathering = client.begin(ask.op, ask.fields, on_output, _watch(ask, asking.append))
    try:
        while gathering.last is None and gathering.cut is None and not asking and time.monotonic() < deadline:
            client.pump(deadline)
        if not asking:
            client.finish(gathering, 0)
    except KeyboardInterrupt:
        if ask.code:
            client.tell("interrupt", {"request_id": gathering.request_id})
        raise
    return _got(gathering, asking)


async def _aexchange(client: AsyncClient, ask: Ask, on_output: OnOutput | None, gone_away: GoneAway | None) -> Got:
    asking: list[Reply] = []
    gathering: Gathering | None = None

    def asks(reply: Reply) -> None:
        asking.append(reply)
        if gathering is not None:
            client.leave(gathering)

    gathering = await client.begin(ask.op, ask.fields, on_output, _watch(ask, asks))
    if asking:  # it came while the request was being sent
        client.leave(gathering)
    try:
        await client.finish(gathering, ask.patience)
    except asyncio.CancelledError:
        if ask.code and gone_away is not None:
            gone_away(gathering)
        raise
    return _got(gathering, asking)


def _got(gathering: Gathering, asking: list[Reply]) -> Got:
    """What came of it. An eval that has ended since waits no more; one that runs on does."""
    last = gathering.last
    return Got(gathering, asking[0] if asking and (last is None or "running" in (last.status or ())) else None)


def _watch(ask: Ask, asks: Callable[[Reply], None]) -> OnStatus | None:
    if not ask.until_input:
        return None

    def on_status(reply: Reply) -> None:
        if "need-input" in (reply.status or ()):
            asks(reply)

    return on_status
