"""Evals of a session: the running one, and finished ones within a memory limit."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from replwire.deadlines import Deadline
from replwire.limits import Limits
from replwire.link import Outcome
from replwire.replies import Reply, encode
from replworker.output import OutputLog


@dataclass(slots=True)
class ReadWaiter:
    """A `read` waiting for the end of an eval. It gets live output unless it filters."""

    route: int
    request_id: str
    stream: str
    offset: int
    max_bytes: int
    grep: str | None
    missing: int = 0  # bytes not sent to it at the start
    dropped: int = 0  # bytes not sent live until then
    deadline: Deadline | None = None


@dataclass(slots=True)
class EvalRecord:
    """An eval in the worker."""

    route: int
    eval_id: int
    request_id: str
    output: OutputLog
    request_number: int  # number of its frame
    op: str = "eval"
    module: str | None = None
    started: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    limit_ms: int | None = None  # set if its time limit was reached
    time_hint: str | None = None
    resend_timer: Deadline | None = None
    waiters: list[ReadWaiter] = field(default_factory=list)
    value: Reply | None = None
    images: list[dict[str, object]] = field(default_factory=list)
    done: Reply | None = None
    outcome: Outcome | None = None  # None: it runs, or a rollback has ended it
    need_input: Reply | None = None  # notice that its code waits for input

    @property
    def memory_bytes(self) -> int:
        """Approximate memory cost in bytes."""
        return self.output.memory_bytes + sum(len(encode(each)) for each in (*self.images, self.value, self.done))


class EvalStore:
    """The running eval, and finished ones up to `output-store-bytes` and `max-history`, oldest dropped first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._finished: OrderedDict[int, EvalRecord] = OrderedDict()
        self._bytes = 0
        self.last_id = 0  # the newest eval that was begun
        self.running: EvalRecord | None = None
        self.dropped: EvalRecord | None = None  # the last one that was discarded

    def begin(self, route: int, eval_id: int, request_id: str, asked: int, op: str = "eval") -> EvalRecord:
        """Start a new eval."""
        output = OutputLog(self._limits.max_output_bytes, self._limits.output_tail_bytes)
        self.last_id = eval_id
        self.running = EvalRecord(route, eval_id, request_id, output, asked, op)
        return self.running

    def end(self) -> None:
        """Store the running eval, whose replies are set."""
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

    def mark_undone(self, eval_ids: Iterable[int], undone: bool) -> None:
        """Mark evals that a rollback has undone, or that count again."""
        for eval_id in eval_ids:
            record = self._finished.get(eval_id)
            if record is not None and record.done is not None:
                record.done.undone = undone or None

    def drop(self) -> None:
        """Discard the running eval."""
        self.dropped, self.running = self.running, None

    def find(self, eval_id: int) -> EvalRecord | None:
        """Return the running or a stored eval, or None."""
        if self.running is not None and self.running.eval_id == eval_id:
            return self.running
        return self._finished.get(eval_id)
