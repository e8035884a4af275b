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
        job = self._streams.evals.find(request.eval_id)
        if job is None:
            err = f"eval {request.eval_id}: its output was dropped to free memory"
            reply = Reply(id=request.id, status=["done", "error", "eval-not-found"], err=err)
            self._send_reply(route, reply, Outcome.ERROR)
            return
        follower = ReadWaiter(route, request.id, request.stream, request.offset, most, request.grep)
        if job.done is not None:
            self._send_rest(job, follower)
            return
        page = _page(job, follower)
        full = page.more and request.max_bytes is not None and request.grep is None  # later output is for the next page
        if full or not request.wait_ms:
            self._on_wait_timeout(job, follower)
            return
        if follower.grep is None:
            self._send_page(route, request.id, page, None)
            follower.missing = page.missing + (job.output.total - page.offset if page.more else 0)
            follower.dropped = job.output.dropped(follower.stream)
        when = time.monotonic() + min(request.wait_ms, self._streams.limits.max_wait_ms) / 1000
        follower.deadline = self._timers.call_at(when, lambda _: self._on_wait_timeout(job, follower))
        job.waiters.append(follower)
        self._send_need_input(job, follower)

    def on_need_input(self, job: EvalRecord) -> None:
        """Tell followers that the eval waits for input."""
        for follower in job.waiters:
            self._send_need_input(job, follower)

    def _send_need_input(self, job: EvalRecord, follower: ReadWaiter) -> None:
        if job.need_input is not None:
            self._send_reply(follower.route, msgspec.structs.replace(job.need_input, id=follower.request_id))

    def on_eval_end(self, job: EvalRecord) -> None:
        """Send followers the eval's result."""
        for follower in job.waiters:
            self._timers.cancel(follower.deadline)
            if follower.grep is None:
                self._send_final(job, follower, _live_page(job, follower))
            else:
                self._send_rest(job, follower)
        job.waiters.clear()

    def _send_rest(self, job: EvalRecord, follower: ReadWaiter) -> None:
        page = _page(job, follower)
        self._send_page(follower.route, follower.request_id, page, follower.grep)
        self._send_final(job, follower, page)

    def _send_final(self, job: EvalRecord, follower: ReadWaiter, page: OutputPage) -> None:
        assert job.done is not None
        for image in job.images:
            self._send_reply(follower.route, Reply(id=follower.request_id, mime=image))
        value = job.value and msgspec.structs.replace(job.value, id=follower.request_id)
        done = msgspec.structs.replace(job.done, id=follower.request_id, dropped_bytes=None, truncated=None)
        self._send_reply(follower.route, self._with_page(done, page, follower.grep), Outcome.OK, before=value)

    def _on_wait_timeout(self, job: EvalRecord, follower: ReadWaiter) -> None:
        live = follower in job.waiters
        if live:
            job.waiters.remove(follower)
        if live and follower.grep is None:
            page = _live_page(job, follower)
        else:
            page = _page(job, follower)
            self._send_page(follower.route, follower.request_id, page, follower.grep)
            self._send_need_input(job, follower)
        reply = Reply(id=follower.request_id, status=["done", "running"], eval_id=job.eval_id)
        self._send_reply(follower.route, self._with_page(reply, page, follower.grep), Outcome.OK)

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


def _page(job: EvalRecord, follower: ReadWaiter) -> OutputPage:
    """Return the page for a reader. A search covers all of it, however many pieces it has."""
    most = _PAGE_PIECES if follower.grep is None else follower.max_bytes
    return job.output.page(follower.offset, follower.stream, follower.max_bytes, most)


def _partial_search_notice(page: OutputPage) -> str:
    """Return the notice for output that a search did not cover."""
    parts = [f"{count_of(page.missing, 'byte')} of output not kept"] if page.missing else []
    parts += [f"output after offset {page.offset} is for the next read"] if page.more else []
    return f"not all of the output was searched: {'; '.join(parts)}"


def _live_page(job: EvalRecord, follower: ReadWaiter) -> OutputPage:
    """Return the empty page of a reader that got the output live, with its missing bytes."""
    missing = follower.missing + job.output.dropped(follower.stream) - follower.dropped
    return OutputPage([], job.output.total, missing, more=False)


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
