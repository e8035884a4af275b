"""Sender of a session's replies to clients, by the routes of their requests."""

from __future__ import annotations

from typing import Any

from replwire.link import FrameKind, Outcome, pack
from replwire.replies import Reply, encode
from replworker.evals import EvalRecord
from replworker.link import BrokerLink
from replworker.output import Stream


class ReplySender:
    """Sends replies and control frames in one epoch, over one link."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self.epoch = 0

    def send_control(self, kind: FrameKind, body: bytes = b"", *, route: int = 0) -> None:
        """Send a control frame to the broker."""
        self._link.send(pack(kind, body, epoch=self.epoch, route=route))

    def send_reply(self, route: int, reply: Reply, outcome: int = Outcome.NONE, before: Reply | None = None) -> None:
        """Send a reply to the client of a route, with an optional message just before it."""
        first = b"" if before is None else encode(before)
        body = first + encode(reply)
        self._link.send(pack(FrameKind.REPLY, body, outcome=outcome, epoch=self.epoch, route=route, first=len(first)))

    def send_output(self, route: int, request_id: str, stream: Stream, text: str) -> None:
        """Send live output; dropped, and counted, if its client reads too slowly."""
        reply = Reply(id=request_id, out=text) if stream == "out" else Reply(id=request_id, err=text)
        self._link.send(pack(FrameKind.OUTPUT, encode(reply), epoch=self.epoch, route=route))

    def send_result(self, record: EvalRecord) -> None:
        """Send the end of an eval with its images and its value."""
        assert record.done is not None
        assert record.outcome is not None
        for image in record.images:
            self.send_reply(record.route, Reply(id=record.request_id, mime=image))
        self.send_reply(record.route, record.done, record.outcome, before=record.value)

    def send_done(self, route: int, request_id: str, **fields: Any) -> None:
        """Send the whole reply in one message."""
        self.send_reply(route, Reply(id=request_id, status=["done"], **fields), Outcome.OK)

    def send_error(self, route: int, request_id: str, code: str, err: str, **more: Any) -> None:
        """Send an error as the whole reply."""
        self.send_reply(route, Reply(id=request_id, status=["done", "error", code], err=err, **more), Outcome.ERROR)
