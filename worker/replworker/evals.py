"""The evals a session keeps: the one that runs, and finished ones until their output takes too much room."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from replwire.deadlines import Deadline
from replwire.limits import Limits
from replwire.replies import Reply, encode
from replworker.output import OutputLog


@dataclass(slots=True)
class ReadWaiter:
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
class EvalRecord:
    """One eval as the worker sees it."""

    route: int
    eval_id: int
    request_id: str
    output: OutputLog
    request_number: int  # the interpreter knows it by this number
    op: str = "eval"
    module: str | None = None
    started: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    limit_ms: int | None = None  # set when its time limit asked it to stop
    time_hint: str | None = None
    resend_timer: Deadline | None = None
    waiters: list[ReadWaiter] = field(default_factory=list)
    value: Reply | None = None
    images: list[dict[str, object]] = field(default_factory=list)
    done: Reply | None = None
    need_input: Reply | None = None  # that its code waits for input, until some is given

    @property
    def memory_bytes(self) -> int:
        """Bytes that keeping it takes, near enough."""
        return self.output.memory_bytes + sum(len(encode(each)) for each in (*self.images, self.value, self.done))


class EvalStore:
    """At most one runs. Finished ones are kept up to `output-store-bytes` and `max-history`, oldest out first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._finished: OrderedDict[int, EvalRecord] = OrderedDict()
        self._bytes = 0
        self.running: EvalRecord | None = None

    def begin(self, route: int, eval_id: int, request_id: str, asked: int, op: str = "eval") -> EvalRecord:
        """A new eval runs now."""
        output = OutputLog(self._limits.max_output_bytes, self._limits.output_tail_bytes)
        self.running = EvalRecord(route, eval_id, request_id, output, asked, op)
        return self.running

    def end(self) -> None:
        """The running one is finished, with its answers set."""
        job, self.running = self.running, None
        if job is None:
            return
        self._finished[job.eval_id] = job
        self._bytes += job.memory_bytes
        limits = self._limits
        while len(self._finished) > 1 and (
            self._bytes > limits.output_store_bytes or len(self._finished) > limits.max_history
        ):
            self._bytes -= self._finished.popitem(last=False)[1].memory_bytes

    def drop(self) -> None:
        """The running one is over and leaves nothing to read."""
        self.running = None

    def find(self, eval_id: int) -> EvalRecord | None:
        """The running one or one that is kept."""
        if self.running is not None and self.running.eval_id == eval_id:
            return self.running
        return self._finished.get(eval_id)
