"""`read`: an eval's output and answer, from an offset, now or when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from replwire.deadlines import Deadlines
from replwire.limits import Limits
from replwire.link import Outcome
from replwire.ops import Read
from replwire.replies import Reply
from replworker.jobs import Follower, Job, Jobs
from replworker.output import Background, Page, Piece, Stream


class Reads:
    """All reads of one session. `say` sends a reply, `out` a chunk of output; both take the route first."""

    def __init__(
        self, jobs: Jobs, background: Background, timers: Deadlines, limits: Limits,
        say: Callable[..., None], out: Callable[[int, str, Stream, str], None],
    ) -> None:  # fmt: skip
        self._jobs = jobs
        self._background = background
        self._timers = timers
        self._limits = limits
        self._say = say
        self._out = out

    def read(self, route: int, request: Read) -> None:
        """Answer now, or follow the running eval until it ends or the wait is over."""
        most = min(request.max_bytes or self._limits.max_output_bytes, self._limits.max_output_bytes)
        if request.eval_id == 0:
            page = self._background.page(request.offset, most)
            self._send(route, request.id, page, request.grep)
            self._say(route, self._paged(Reply(id=request.id, status=["done"], eval_id=0), page), Outcome.OK)
            return
        job = self._jobs.find(request.eval_id)
        if job is None:
            err = f"eval {request.eval_id}: its output was given up to make room"
            reply = Reply(id=request.id, status=["done", "error", "eval-not-found"], err=err)
            self._say(route, reply, Outcome.ERROR)
            return
        follower = Follower(route, request.id, request.stream, request.offset, most, request.grep)
        if job.done is not None:
            self._finish(job, follower)
            return
        page = job.output.page(follower.offset, follower.stream, most)
        full = page.more and request.max_bytes is not None and request.grep is None  # what comes is for the next page
        if full or not request.wait_ms:
            self._wait_over(job, follower)
            return
        if follower.grep is None:
            self._send(route, request.id, page, None)
            follower.missing = page.missing + (job.output.total - page.offset if page.more else 0)
            follower.dropped = job.output.dropped(follower.stream)
        when = time.monotonic() + min(request.wait_ms, self._limits.max_wait_ms) / 1000
        follower.deadline = self._timers.at(when, lambda _: self._wait_over(job, follower))
        job.followers.append(follower)
        self._tell_need(job, follower)

    def needs_input(self, job: Job) -> None:
        """The eval waits for input: tell who follows it."""
        for follower in job.followers:
            self._tell_need(job, follower)

    def _tell_need(self, job: Job, follower: Follower) -> None:
        if job.need is not None:
            self._say(follower.route, msgspec.structs.replace(job.need, id=follower.request_id))

    def ended(self, job: Job) -> None:
        """The eval has its answer: tell who follows it."""
        for follower in job.followers:
            self._timers.cancel(follower.deadline)
            if follower.grep is None:
                self._terminal(job, follower, _heard_live(job, follower))
            else:
                self._finish(job, follower)
        job.followers.clear()

    def _finish(self, job: Job, follower: Follower) -> None:
        page = job.output.page(follower.offset, follower.stream, follower.max_bytes)
        self._send(follower.route, follower.request_id, page, follower.grep)
        self._terminal(job, follower, page)

    def _terminal(self, job: Job, follower: Follower, page: Page) -> None:
        assert job.done is not None
        for image in job.images:
            self._say(follower.route, Reply(id=follower.request_id, mime=image))
        value = job.value and msgspec.structs.replace(job.value, id=follower.request_id)
        done = msgspec.structs.replace(job.done, id=follower.request_id, dropped_bytes=None, truncated=None)
        self._say(follower.route, self._paged(done, page), Outcome.OK, before=value)

    def _wait_over(self, job: Job, follower: Follower) -> None:
        live = follower in job.followers
        if live:
            job.followers.remove(follower)
        if live and follower.grep is None:
            page = _heard_live(job, follower)
        else:
            page = job.output.page(follower.offset, follower.stream, follower.max_bytes)
            self._send(follower.route, follower.request_id, page, follower.grep)
            self._tell_need(job, follower)
        reply = Reply(id=follower.request_id, status=["done", "running"], eval_id=job.eval_id)
        self._say(follower.route, self._paged(reply, page), Outcome.OK)

    def _send(self, route: int, request_id: str, page: Page, grep: str | None) -> None:
        for piece in page.pieces if grep is None else _matching(page.pieces, grep):
            self._out(route, request_id, piece.stream, piece.text)

    @staticmethod
    def _paged(reply: Reply, page: Page) -> Reply:
        reply.offset = page.offset
        if page.missing or page.more:
            reply.truncated = True
        reply.dropped_bytes = page.missing or None
        return reply


def _heard_live(job: Job, follower: Follower) -> Page:
    """What there is to send to a follower that has heard the output as it came: nothing, and what it has not got."""
    missing = follower.missing + job.output.dropped(follower.stream) - follower.dropped
    return Page([], job.output.total, missing, more=False)


def _matching(pieces: Iterable[Piece], grep: str) -> Iterator[Piece]:
    """Lines with this fixed string; a line may go on in a later piece. No pattern: one that never ends would stop the
    worker."""
    begun: dict[Stream, str] = {}
    for stream, text in pieces:
        lines = (begun.pop(stream, "") + text).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            begun[stream] = lines.pop()
        if found := "".join(line for line in lines if grep in line):
            yield Piece(stream, found)
    yield from (Piece(stream, line) for stream, line in begun.items() if grep in line)
