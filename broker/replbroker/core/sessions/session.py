"""One session: its states and moves as a table, its queue, and the evals it remembers."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from replbroker.core.effects import Peer, WorkerSpec
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.quotas import Holder
from replbroker.core.sessions.event_buffer import EventBuffer
from replbroker.core.sessions.output_summary import OutputSummary
from replwire.deadlines import Deadline
from replwire.identities import Principal
from replwire.limits import Limits
from replwire.link import SnapshotBody
from replwire.ops import Queueable

VACANT: Final = "vacant"  # no worker: it was lost, and the next eval takes a fresh one
STARTING: Final = "starting"  # a worker is on its way or being told whose it is
IDLE: Final = "idle"
BUSY: Final = "busy"
CLOSED: Final = "closed"
CODE_SHOWN: Final = 80  # characters of an eval's code in lists

# docs/concepts.md draws this table.
TRANSITIONS: Final[dict[tuple[str, str], str]] = {
    (VACANT, "take"): STARTING,
    (STARTING, "claimed"): IDLE,
    (IDLE, "dispatch"): BUSY,
    (BUSY, "finish"): IDLE,
    (STARTING, "lose"): VACANT,
    (IDLE, "lose"): VACANT,
    (BUSY, "lose"): VACANT,
    (VACANT, "close"): CLOSED,
    (STARTING, "close"): CLOSED,
    (IDLE, "close"): CLOSED,
    (BUSY, "close"): CLOSED,
}


class EvalTask:
    """One eval, from its request to its end. `peer` is None once nobody waits for its answer."""

    __slots__ = (
        "asker",
        "body",
        "cancelled",
        "code",
        "deadline",
        "duration",
        "epoch",
        "eval_id",
        "heard",
        "judging",
        "label",
        "limit_ms",
        "notice",
        "peer",
        "repeatable",
        "request",
        "request_id",
        "route",
        "session",
        "started",
        "state",
        "status",
        "submitted",
        "time_hint",
        "turn",
        "wait_deadline",
        "withheld",
    )

    QUEUED: Final = "queued"
    STARTING: Final = "starting"  # has its slot, the worker does not have it yet
    RUNNING: Final = "running"
    DONE: Final = "done"

    def __init__(
        self, session: Session, route: int, peer: Peer, turn: SlotRequest, request: Queueable, now: float
    ) -> None:
        self.session = session
        self.route = route
        self.peer: Peer | None = peer
        self.turn = turn
        self.label = request.agent
        self.asker = Principal(identity="")  # the owner of a clone
        self.request_id = request.id
        self.eval_id = session.next_eval_id()
        self.epoch = session.epoch
        self.body: bytes | None = None
        self.code = request.summary()[:CODE_SHOWN]
        self.request: Queueable | None = request  # until it runs
        self.limit_ms, self.time_hint = 0, ""
        self.repeatable = getattr(request, "idempotency_key", None) is not None  # whoever repeats it is to be answered
        self.state: str = self.QUEUED
        self.status: list[str] = []
        self.submitted = now
        self.started: float | None = None
        self.duration: float | None = None
        self.cancelled: str | None = None
        self.heard: OutputSummary | None = None  # what it has shown, while anybody wants to know
        self.withheld = False  # its code is kept nowhere until hooks have let it run
        self.judging: Deadline | None = None  # hooks have not said yet whether it may run
        self.deadline: Deadline | None = None
        self.notice: Deadline | None = None
        self.wait_deadline: Deadline | None = None


class WorkerRequest:
    """A request that the session's worker answers: everything but an eval."""

    __slots__ = ("body", "deadline", "eval_id", "holder", "op", "peer", "request_id", "route", "session", "wait_ms")

    def __init__(
        self, session: Session, route: int, peer: Peer, holder: Holder, request_id: str, op: str, body: bytes
    ) -> None:
        self.session = session
        self.route = route
        self.peer: Peer | None = peer
        self.holder = holder
        self.request_id = request_id
        self.op = op
        self.body = body
        self.eval_id = 0
        self.wait_ms = 0
        self.deadline: Deadline | None = None


class ReadyWaiter:
    """A client that hears when the session has its worker: who asked for `new-session`, `reset` or `clone`."""

    __slots__ = ("cause", "copied", "created", "old_words", "peer", "request_id")

    def __init__(
        self,
        peer: Peer | None,
        request_id: str,
        created: bool | None,
        copied: SnapshotBody | None = None,
        old_words: bool = False,
        cause: str | None = None,
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.created = created
        self.copied = copied
        self.old_words = old_words
        self.cause = cause  # how the session of this name before it ended


class HistoryItem(NamedTuple):
    """One entry of a session's history."""

    job: EvalTask
    code: str
    size: int  # in bytes


class Session:
    """What the broker knows of a session. Its variables live in the interpreter, nowhere else."""

    def __init__(
        self, id: str, name: str | None, spec: WorkerSpec, agent: str | None, limits: Limits, now: float
    ) -> None:
        self.id = id
        self.name = name
        self.spec = spec
        self.agent = agent  # the label of whoever opened it
        self.limits = limits
        self.owner = ""  # an identity
        self.owner_principal = Principal(identity="")  # the owner, with whose rights its workers open what it names
        self.opened_for = ""  # the identity with whose rights its worker was set up
        self.scope = ""  # of its name: see `replwire.identifiers.scope_of`
        self.shares: dict[str, str] = {}  # who else may read or write
        self.offered_to: str | None = None  # who may take it, and see it until then
        self.mode: str = "normal"
        self.mode_since: float = now
        self.mode_reason: str | None = None
        self.cwd: str | None = None
        self.cwd_needed = True
        self.notice: str | None = None  # what its first answer says besides
        self.cwd_unavailable = False  # it wished for its directory, and does without one
        self.env: list[str] = []
        self.state: str = VACANT
        self.epoch = 1
        self.worker: int | None = None
        self.ephemeral = False
        self.created_at = now
        self.last_active = now
        self.lost_cause: str | None = None  # how the last worker went, until a fresh one knows and will tell
        self.was_ready = False
        self.running: EvalTask | None = None  # has a slot
        self.next_up: EvalTask | None = None  # first in line, waits at the gate
        self.queue: deque[EvalTask] = deque()
        self.evals: deque[EvalTask] = deque()
        self.inflight: dict[int, WorkerRequest] = {}
        self.deferred: list[WorkerRequest] = []  # asks that wait for the worker, or for their eval to start
        self.waiters: list[ReadyWaiter] = []
        self.start_deadline: Deadline | None = None
        self.snapshot_path: str | None = None  # file with the names that a clone begins with
        self.executable: str | None = None
        self.replacement: Session | None = None  # gets a worker in another environment, and then gives it to this one
        self.replaces: Session | None = None
        self.history: deque[HistoryItem] = deque()
        self._history_bytes = 0
        self.event_buffer = EventBuffer()
        self._evals = 0

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.id

    def specs(self) -> list[WorkerSpec]:
        """That of its worker, and that of the one that it is to get instead."""
        return [self.spec, *([self.replacement.spec] if self.replacement is not None else [])]

    @property
    def directory(self) -> str | None:
        """Where it works, as far as is known before its worker has said so."""
        return None if self.cwd_unavailable else self.cwd

    @property
    def project(self) -> str | None:
        """The project that it is the default session of."""
        return self.scope if self.scope.startswith("/") else None

    @property
    def holder(self) -> Holder:
        """On whose account it is."""
        return Holder(self.owner, self.agent or "")

    @property
    def eval_count(self) -> int:
        """Evals ever taken in."""
        return self._evals

    @property
    def is_occupied(self) -> bool:
        """Whether an eval runs or waits."""
        return self.running is not None or self.next_up is not None or bool(self.queue)

    @property
    def is_in_use(self) -> bool:
        """Whether an eval runs or waits, or a worker is on its way."""
        return self.replacement is not None or self.is_occupied or self.state not in (IDLE, VACANT)

    def next_eval_id(self) -> int:
        """Numbers of evals are the session's own, from 1, and go on across epochs."""
        self._evals += 1
        return self._evals

    def set_epoch(self, epoch: int) -> None:
        """Go on with the same worker in a higher epoch. Nothing runs, waits or asks."""
        for job in self.evals:
            if job.epoch == self.epoch:
                job.epoch = epoch  # its output is still to be read
        self.epoch = epoch

    def transition(self, move: str) -> None:
        """Make a move of the table. Raises KeyError for one that is not in it: a defect of the broker."""
        self.state = TRANSITIONS[self.state, move]

    def add_history(self, job: EvalTask, code: str) -> None:
        """Keep what is run; the oldest goes when there is too much."""
        size = len(code) if code.isascii() else len(code.encode("utf-8", "replace"))
        self.history.append(HistoryItem(job, code, size))
        self._history_bytes += size
        while len(self.history) > self.limits.max_history or self._history_bytes > self.limits.history_bytes:
            self._history_bytes -= self.history.popleft().size

    def find_eval(self, eval_id: int) -> EvalTask | None:
        """A running, queued or remembered eval by its number."""
        for job in reversed(self.evals):
            if job.eval_id == eval_id:
                return job
        return None

    def trim_evals(self, most: int) -> None:
        """Remember so many finished evals at most, the newest; what runs or waits is not forgotten."""
        alive = len(self.queue) + (self.next_up is not None) + (self.running is not None)
        for _ in range(len(self.evals) - alive - most):
            self.evals.remove(next(job for job in self.evals if job.state is EvalTask.DONE))

    def waiting_evals(self) -> list[EvalTask]:
        """Evals that have no slot yet, first in line first."""
        return ([self.next_up] if self.next_up is not None else []) + list(self.queue)

    def position(self, job: EvalTask, at_gate: int) -> int:
        """How many evals go before this waiting one: of its session, or at the gate and for the slot there."""
        ahead = self.waiting_evals().index(job)
        return ahead + (1 if self.running is not None else at_gate)
