"""The evals a session keeps: the one that runs, and finished ones until their output takes too much room."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from replwire.deadlines import Deadline
from replwire.limits import Limits
from replwire.replies import Reply, encode
from replworker.output import Output


@dataclass(slots=True)
class Follower:
    """A `read` that waits for the end of an eval. It hears live output unless it filters."""

    route: int
    request_id: str
    stream: str
    offset: int
    max_bytes: int
    grep: str | None
    missing: int = 0  # bytes that it was not sent when it came
    dropped: int = 0  # bytes that were not sent on live until then
    deadline: Deadline | None = None


@dataclass(slots=True)
class Job:
    """One eval as the worker sees it."""

    route: int
    eval_id: int
    request_id: str
    output: Output
    asked: int  # the interpreter knows it by this number
    op: str = "eval"
    module: str | None = None
    started: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    limit_ms: int | None = None  # set when its time limit asked it to stop
    time_hint: str | None = None
    resend: Deadline | None = None
    followers: list[Follower] = field(default_factory=list)
    value: Reply | None = None
    images: list[dict[str, object]] = field(default_factory=list)
    done: Reply | None = None
    need: Reply | None = None  # that its code waits for input, until some is given

    @property
    def kept(self) -> int:
        """Bytes that keeping it takes, near enough."""
        return self.output.kept + sum(len(encode(each)) for each in (*self.images, self.value, self.done))


class Jobs:
    """At most one runs. Finished ones are kept up to `output-store-bytes` and `max-history`, oldest out first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: OrderedDict[int, Job] = OrderedDict()
        self._bytes = 0
        self.running: Job | None = None

    def begin(self, route: int, eval_id: int, request_id: str, asked: int, op: str = "eval") -> Job:
        """A new eval runs now."""
        output = Output(self._limits.max_output_bytes, self._limits.output_tail_bytes)
        self.running = Job(route, eval_id, request_id, output, asked, op)
        return self.running

    def end(self) -> None:
        """The running one is finished, with its answers set."""
        job, self.running = self.running, None
        if job is None:
            return
        self._kept[job.eval_id] = job
        self._bytes += job.kept
        limits = self._limits
        while len(self._kept) > 1 and (self._bytes > limits.output_store_bytes or len(self._kept) > limits.max_history):
            self._bytes -= self._kept.popitem(last=False)[1].kept

    def drop(self) -> None:
        """The running one is over and leaves nothing to read."""
        self.running = None

    def find(self, eval_id: int) -> Job | None:
        """The running one or one that is kept."""
        if self.running is not None and self.running.eval_id == eval_id:
            return self.running
        return self._kept.get(eval_id)
