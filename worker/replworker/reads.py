"""`read`: output and result of an eval from an offset, immediately or at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from replwire.deadlines import Deadlines
from replwire.link import Outcome
from replwire.ops import Read
from replwire.quantities import count_of
from replwire.replies import Reply
from replworker.evals import EvalRecord, ReadWaiter
from replworker.output import STREAMS, OutputPage, OutputPiece, Stream
from replworker.session_streams import SessionStreams

# Text per reply. It is never dropped, so it must be less than the backlog at which slow clients are
# disconnected: 8 MiB, and JSON may be six times as long; 1000 messages.
_PAGE_BYTES = 1 << 20
_PAGE_PIECES = 200


class ReadHandler:
    """Reads of one session. `send_reply` sends a reply to a route."""

    def __init__(
        self,
        streams: SessionStreams,
        timers: Deadlines,
        send_reply: Callable[..., None],
    ) -> None:
        self._streams = streams
        self._timers = timers
        self._send_reply = send_reply

    def read(self, route: int, request: Read) -> None:
        """Reply immediately, or follow the running eval until it ends or the wait is over."""
        most = min(request.max_bytes or _PAGE_BYTES, self._streams.limits.max_output_bytes, _PAGE_BYTES)
        if request.eval_id == 0:
            page = self._streams.background.page(request.offset, most)
            self._send_page(route, request.id, page, request.grep)
            reply = Reply(id=request.id, status=["done"], eval_id=0)
            self._send_reply(route, self._with_page(reply, page, request.grep), Outcome.OK)
            return
        record = self._streams.evals.find(request.eval_id)
        if record is None:
            err = f"eval {request.eval_id}: its output was dropped to free memory"
            reply = Reply(id=request.id, status=["done", "error", "eval-not-found"], err=err)
            self._send_reply(route, reply, Outcome.ERROR)
            return
        waiter = ReadWaiter(route, request.id, request.stream, request.offset, most, request.grep)
        if record.done is not None:
            self._send_rest(record, waiter)
            return
        page = _page(record, waiter)
        full = page.more and request.max_bytes is not None and request.grep is None  # later output is for the next page
        if full or not request.wait_ms:
            self._on_wait_timeout(record, waiter)
            return
        if waiter.grep is None:
            self._send_page(route, request.id, page, None)
            waiter.missing = page.missing + (record.output.total - page.offset if page.more else 0)
            waiter.dropped = record.output.dropped(waiter.stream)
        when = time.monotonic() + min(request.wait_ms, self._streams.limits.max_wait_ms) / 1000
        waiter.deadline = self._timers.call_at(when, lambda _: self._on_wait_timeout(record, waiter))
        record.waiters.append(waiter)
        self._send_need_input(record, waiter)

    def on_need_input(self, record: EvalRecord) -> None:
        """Tell followers that the eval waits for input."""
        for waiter in record.waiters:
            self._send_need_input(record, waiter)

    def _send_need_input(self, record: EvalRecord, waiter: ReadWaiter) -> None:
        if record.need_input is not None:
            self._send_reply(waiter.route, msgspec.structs.replace(record.need_input, id=waiter.request_id))

    def on_eval_end(self, record: EvalRecord) -> None:
        """Send followers the eval's result."""
        for waiter in record.waiters:
            self._timers.cancel(waiter.deadline)
            if waiter.grep is None:
                self._send_final(record, waiter, _live_page(record, waiter))
            else:
                self._send_rest(record, waiter)
        record.waiters.clear()

    def _send_rest(self, record: EvalRecord, waiter: ReadWaiter) -> None:
        page = _page(record, waiter)
        self._send_page(waiter.route, waiter.request_id, page, waiter.grep)
        self._send_final(record, waiter, page)

    def _send_final(self, record: EvalRecord, waiter: ReadWaiter, page: OutputPage) -> None:
        assert record.done is not None
        for image in record.images:
            self._send_reply(waiter.route, Reply(id=waiter.request_id, mime=image))
        value = record.value and msgspec.structs.replace(record.value, id=waiter.request_id)
        done = msgspec.structs.replace(record.done, id=waiter.request_id, dropped_bytes=None, truncated=None)
        self._send_reply(waiter.route, self._with_page(done, page, waiter.grep), Outcome.OK, before=value)

    def _on_wait_timeout(self, record: EvalRecord, waiter: ReadWaiter) -> None:
        live = waiter in record.waiters
        if live:
            record.waiters.remove(waiter)
        if live and waiter.grep is None:
            page = _live_page(record, waiter)
        else:
            page = _page(record, waiter)
            self._send_page(waiter.route, waiter.request_id, page, waiter.grep)
            self._send_need_input(record, waiter)
        reply = Reply(id=waiter.request_id, status=["done", "running"], eval_id=record.eval_id)
        self._send_reply(waiter.route, self._with_page(reply, page, waiter.grep), Outcome.OK)

    def _send_page(self, route: int, request_id: str, page: OutputPage, grep: str | None) -> None:
        """Send a page's text as a reply rather than as live output, so nothing is dropped for a slow reader."""
        pieces = page.pieces if grep is None else list(_matching_lines(page.pieces, grep))
        if len(pieces) > _PAGE_PIECES:  # of a search: merge the lines of each stream
            pieces = [OutputPiece(name, "".join(text for stream, text in pieces if stream == name)) for name in STREAMS]
            pieces = [piece for piece in pieces if piece.text]
        for stream, text in pieces:
            self._send_reply(
                route, Reply(id=request_id, out=text) if stream == "out" else Reply(id=request_id, err=text)
            )

    @staticmethod
    def _with_page(reply: Reply, page: OutputPage, grep: str | None = None) -> Reply:
        reply.offset = page.offset
        if grep is not None and (page.missing or page.more):
            reply.notice = _partial_search_notice(page)
        if page.missing or page.more:
            reply.truncated = True
        reply.dropped_bytes = page.missing or None
        return reply


def _page(record: EvalRecord, waiter: ReadWaiter) -> OutputPage:
    """Return the page for a reader. A search covers all of it, however many pieces it has."""
    most = _PAGE_PIECES if waiter.grep is None else waiter.max_bytes
    return record.output.page(waiter.offset, waiter.stream, waiter.max_bytes, most)


def _partial_search_notice(page: OutputPage) -> str:
    """Return the notice for output that a search did not cover."""
    parts = [f"{count_of(page.missing, 'byte')} of output not kept"] if page.missing else []
    parts += [f"output after offset {page.offset} is for the next read"] if page.more else []
    return f"not all of the output was searched: {'; '.join(parts)}"


def _live_page(record: EvalRecord, waiter: ReadWaiter) -> OutputPage:
    """Return the empty page of a reader that got the output live, with its missing bytes."""
    missing = waiter.missing + record.output.dropped(waiter.stream) - waiter.dropped
    return OutputPage([], record.output.total, missing, more=False)


def _matching_lines(pieces: Iterable[OutputPiece], grep: str) -> Iterator[OutputPiece]:
    """Yield lines that contain a fixed string; a line may span pieces.

    No regular expressions: a catastrophic one would block the worker.
    """
    begun: dict[Stream, str] = {}
    for stream, text in pieces:
        lines = (begun.pop(stream, "") + text).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            begun[stream] = lines.pop()
        if found := "".join(line for line in lines if grep in line):
            yield OutputPiece(stream, found)
    yield from (OutputPiece(stream, line) for stream, line in begun.items() if grep in line)
