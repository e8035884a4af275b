"""Events of a broker as an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replctl.client import talk
from replwire.replies import Reply

if TYPE_CHECKING:
    from replctl.client.sync import Client

Event = dict[str, Any]


def subscription(session: str | None, types: Sequence[str], since: int | None, output: bool) -> dict[str, Any]:
    """Fields of `subscribe`; defaults of the wire stay off it."""
    return {"session": session, "types": list(types) or None, "since_seq": since, "output": output or None}


def listen(
    client: Client, session: str | None, types: Sequence[str], since: int | None, output: bool
) -> Iterator[Event]:  # fmt: skip
    """See `Client.events`."""
    while True:
        waiting: deque[Reply] = deque()
        fields = subscription(session, types, since, output)
        gathering = client.begin("subscribe", fields, on_status=waiting.append)
        again = False
        try:
            while gathering.last is None and not again:
                if gathering.cut is not None:
                    raise talk.lost(gathering, gathering.cut)
                client.pump(None)
                while waiting and not again:
                    for event in events_in(waiting.popleft()):
                        since = event.get("seq", since)
                        again = session is not None and event["type"] == "bus/lagged" and since is not None
                        yield event
        finally:
            if gathering.last is None and gathering.cut is None:
                client.tell("unsubscribe", {"subscription": gathering.request_id})
                client.leave(gathering)
        if not again:
            talk.answer(gathering)
            return


def events_in(reply: Reply) -> Iterator[Event]:
    """The events that a message of a subscription brings."""
    if reply.missed:
        yield {"type": "bus/lagged", "missed": reply.missed, "session": reply.session}
    yield from reply.events or ()
    if reply.event is not None:
        yield reply.event
