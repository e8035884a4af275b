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
    steps: Steps, client: AsyncClient, on_output: OnOutput | None = None, gone_away: GoneAway | None = None,
    on_approval: OnApproval | None = None, traceparent: str | None = None,
) -> Answer:  # fmt: skip
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
    if not ask.code:
        gathering = client.begin(ask.op, ask.fields)
        client.finish(gathering, ask.patience)
        return Got(gathering)
    asking: list[Reply] = []
    deadline = time.monotonic() + ask.patience
    gathering = client.begin(ask.op, ask.fields, on_output, _watch(asking.append))
    try:
        while gathering.last is None and gathering.cut is None and not asking and time.monotonic() < deadline:
            client.pump(deadline)
        if not asking:
            client.finish(gathering, 0)
    except KeyboardInterrupt:
        client.tell("interrupt", {"request_id": gathering.request_id})
        raise
    return Got(gathering, asking[0] if gathering.last is None else None)


async def _aexchange(client: AsyncClient, ask: Ask, on_output: OnOutput | None, gone_away: GoneAway | None) -> Got:
    if not ask.code:
        return Got(await client.exchange(ask.op, ask.fields, ask.patience))
    asking: list[Reply] = []
    gathering: Gathering | None = None

    def asks(reply: Reply) -> None:
        asking.append(reply)
        if gathering is not None:
            client.leave(gathering)

    gathering = await client.begin(ask.op, ask.fields, on_output, _watch(asks))
    if asking:  # it came while the request was being sent
        client.leave(gathering)
    try:
        ended = await client.finish(gathering, ask.patience)
    except asyncio.CancelledError:
        if gone_away is not None:
            gone_away(gathering)
        raise
    return Got(gathering, None if ended else asking[0])


def _watch(asks: Callable[[Reply], None]) -> OnStatus:
    def on_status(reply: Reply) -> None:
        if "need-input" in (reply.status or ()):
            asks(reply)

    return on_status
