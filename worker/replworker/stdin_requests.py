"""The operation `stdin`: input for the eval that runs, or for the next one."""

from __future__ import annotations

import msgspec

from replwire.limits import RETRY_AFTER_MS
from replwire.link import AssignBody
from replwire.ops import Stdin
from replworker.reply_sender import ReplySender
from replworker.session_streams import SessionStreams

_decode = msgspec.json.Decoder(Stdin).decode


def answer_stdin(
    streams: SessionStreams, replies: ReplySender, assignment: AssignBody | None, route: int, body: bytes
) -> None:
    """Buffer input for a session, and reply; refuse what does not fit."""
    assert assignment is not None
    request = _decode(body)
    data = request.input.encode("utf-8", "surrogatepass")
    if not streams.stdin.offer(data):
        _reject(streams, replies, route, request, len(data))
        return
    running = streams.evals.running
    if running is not None:
        running.need_input = None
    where = "delivered" if running is not None else "buffered"
    replies.send_done(route, request.id, **{where: [assignment.name or assignment.session]})


def _reject(streams: SessionStreams, replies: ReplySender, route: int, request: Stdin, size: int) -> None:
    most = streams.limits.max_stdin_bytes
    if size > most:  # it never fits, so no retry is suggested
        text = f"{size} bytes of input exceed the limit (max-stdin-bytes = {most})"
        hint, retry = f"send at most {most} bytes at a time, after the code has read the previous ones", None
    else:
        text = f"{streams.stdin.unread_bytes()} bytes of input are unread (max-stdin-bytes = {most})"
        hint, retry = None, RETRY_AFTER_MS
    limit = {"limit": "max-stdin-bytes", "limit_value": most}
    replies.send_error(route, request.id, "stdin-buffer-full", text, hint=hint, retry_after_ms=retry, **limit)
