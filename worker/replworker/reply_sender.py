"""How a session's worker speaks to clients, by the routes that the broker gave their requests."""

from __future__ import annotations

from typing import Any

from replwire.link import FrameKind, Outcome, pack
from replwire.replies import Reply, encode
from replworker.link import BrokerLink
from replworker.output import Stream


class ReplySender:
    """Says things in one epoch, over one link."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self.epoch = 0

    def send_control(self, kind: FrameKind, body: bytes = b"", *, route: int = 0) -> None:
        """A frame for the broker itself."""
        self._link.send(pack(kind, body, epoch=self.epoch, route=route))

    def send_reply(self, route: int, reply: Reply, outcome: int = Outcome.NONE, before: Reply | None = None) -> None:
        """Send a reply to the client of a route; `before` is one that comes just before it."""
        first = b"" if before is None else encode(before)
        body = first + encode(reply)
        self._link.send(pack(FrameKind.REPLY, body, outcome=outcome, epoch=self.epoch, route=route, first=len(first)))

    def send_output(self, route: int, request_id: str, stream: Stream, text: str) -> None:
        """Live output: lost, and counted, when its client reads too slowly."""
        reply = Reply(id=request_id, out=text) if stream == "out" else Reply(id=request_id, err=text)
        self._link.send(pack(FrameKind.OUTPUT, encode(reply), epoch=self.epoch, route=route))

    def send_done(self, route: int, request_id: str, **fields: Any) -> None:
        """The whole answer, in one message."""
        self.send_reply(route, Reply(id=request_id, status=["done"], **fields), Outcome.OK)

    def send_error(self, route: int, request_id: str, word: str, err: str, **more: Any) -> None:
        """The whole answer, a refusal."""
        self.send_reply(route, Reply(id=request_id, status=["done", "error", word], err=err, **more), Outcome.ERROR)
