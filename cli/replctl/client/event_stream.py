"""A broker's events as an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replctl.client import protocol
from replwire.replies import Reply

if TYPE_CHECKING:
    from replctl.client.result import PendingRequest
    from replctl.client.sync import Client

Event = dict[str, Any]


def subscribe_fields(session: str | None, types: Sequence[str], since: int | None, output: bool) -> dict[str, Any]:
    """Return the fields of `subscribe`, without those at their default."""
    return {"session": session, "types": list(types) or None, "since_seq": since, "output": output or None}


def iterate_events(
    client: Client, session: str | None, types: Sequence[str], since: int | None, output: bool
) -> Iterator[Event]:
    """Yield events as they happen; see `Client.events`."""
    waiting: deque[Reply] = deque()
    pending = client.send("subscribe", subscribe_fields(session, types, since, output), on_status=waiting.append)
    last = since or 0  # the last number seen
    try:
        while pending.final is None:
            _receive(client, pending)
            while waiting:
                reply = waiting.popleft()
                lagged = session is not None and reply.event is not None and reply.event["type"] == "bus/lagged"
                for event in events_in(reply):
                    last = max(last, event.get("seq", 0))
                    yield event
                if lagged:
                    for event in _missing_events(client, subscribe_fields(session, types, last, False), waiting):
                        last = max(last, event.get("seq", 0))
                        yield event
                last = max(last, reply.seq or 0)
    finally:
        _unsubscribe(client, pending)
    protocol.final_reply(pending)


def _missing_events(client: Client, fields: dict[str, Any], waiting: deque[Reply]) -> list[Event]:
    """Return the events after `since_seq` that are not among the waiting ones; the broker still keeps the newest."""
    got: deque[Reply] = deque()
    pending = client.send("subscribe", fields, on_status=got.append)
    try:
        while not got and pending.final is None:
            _receive(client, pending)
    finally:
        _unsubscribe(client, pending)
    numbers = [event["seq"] for reply in waiting for event in events_in(reply) if "seq" in event]
    return [event for event in events_in(got[0]) if event.get("seq", 0) < min(numbers, default=1 << 62)] if got else []


def _receive(client: Client, pending: PendingRequest) -> None:
    if pending.error is not None:
        raise protocol.with_partial_result(pending, pending.error)
    client.poll(None)


def _unsubscribe(client: Client, pending: PendingRequest) -> None:
    if pending.final is None and pending.error is None:
        client.send_nowait("unsubscribe", {"subscription": pending.request_id})
        client.abandon(pending)


def events_in(reply: Reply) -> Iterator[Event]:
    """Yield the events in a message of a subscription."""
    if reply.missed:
        yield {"type": "bus/lagged", "missed": reply.missed, "session": reply.session}
    yield from reply.events or ()
    if reply.event is not None:
        yield reply.event
