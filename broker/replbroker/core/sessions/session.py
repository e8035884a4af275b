"""Sessions: their states and transitions as a table, their queue, and the evals they remember."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from replbroker.core.effects import WorkerSpec
from replbroker.core.limits.quotas import Holder
from replbroker.core.sessions.eval_task import EvalTask, HistoryItem, ReadyWaiter, WorkerRequest
from replbroker.core.sessions.event_buffer import EventBuffer
from replbroker.core.sessions.traffic_counts import TrafficCounts
from replwire.deadlines import Deadline
from replwire.identities import Principal
from replwire.limits import Limits
from replwire.link import HibernatedState, SnapshotSource

VACANT: Final = "vacant"  # no worker: it was lost, and the next eval takes a fresh one
HIBERNATED: Final = "hibernated"  # no worker: its variables are stored, and the next eval brings them back
STARTING: Final = "starting"  # a worker starts, or is being assigned
ADOPTING: Final = "adopting"  # its worker, of the broker before this one, has not come back yet
IDLE: Final = "idle"
BUSY: Final = "busy"
CLOSED: Final = "closed"
_RECENT_MOVES = 8  # that the error for an invalid transition names

# docs/concepts.md draws this table.
TRANSITIONS: Final[dict[tuple[str, str], str]] = {
    (VACANT, "take"): STARTING,
    (HIBERNATED, "take"): STARTING,
    (VACANT, "restore"): ADOPTING,
    (IDLE, "restore"): ADOPTING,
    (BUSY, "restore"): ADOPTING,
    (ADOPTING, "adopted"): IDLE,
    (STARTING, "assigned"): IDLE,
    (IDLE, "dispatch"): BUSY,
    (BUSY, "finish"): IDLE,
    (IDLE, "hibernate"): HIBERNATED,
    (VACANT, "hibernate"): HIBERNATED,
    (STARTING, "hibernate"): HIBERNATED,
    (HIBERNATED, "lose"): VACANT,
    (STARTING, "lose"): VACANT,
    (ADOPTING, "lose"): VACANT,
    (IDLE, "lose"): VACANT,
    (BUSY, "lose"): VACANT,
    (VACANT, "close"): CLOSED,
    (HIBERNATED, "close"): CLOSED,
    (STARTING, "close"): CLOSED,
    (ADOPTING, "close"): CLOSED,
    (IDLE, "close"): CLOSED,
    (BUSY, "close"): CLOSED,
}


class InvalidTransition(Exception):
    """A move that a session's state does not allow: a defect of the broker."""

    def __init__(self, session: Session, move: str) -> None:
        moves = " ".join(session.recent_moves) or "none"
        events = " ".join(f"{each.seq}:{each.type}" for each in session.event_buffer.newest(_RECENT_MOVES)) or "none"
        super().__init__(
            f"session {session.label} ({session.id}), epoch {session.epoch}, is {session.state} and cannot {move}; "
            f"moves before: {moves}; last events: {events}"
        )


class Session:
    """The broker's record of a session. Its variables exist in the interpreter only."""

    def __init__(
        self, id: str, name: str | None, spec: WorkerSpec, agent: str | None, limits: Limits, now: float
    ) -> None:
        self.id = id
        self.name = name
        self.spec = spec
        self.agent = agent  # the label of the agent that opened it
        self.limits = limits
        self.owner = ""  # an identity
        self.owner_principal = Principal(identity="")  # the owner, whose rights its workers use to open files
        self.worker_identity = ""  # the owner when its worker was assigned, whose rights the worker uses
        self.scope = ""  # of its name: see `replwire.identifiers.scope_of`
        self.shares: dict[str, str] = {}  # `read` or `write`, by identity
        self.offered_to: str | None = None  # the identity that may take it over, and see it until then
        self.mode: str = "normal"
        self.mode_since: float = now
        self.mode_reason: str | None = None
        self.cwd: str | None = None
        self.cwd_needed = True
        self.notice: str | None = None  # a sentence to add to its first reply
        self.cwd_unavailable = False  # it asked for its directory and goes on without
        self.env: list[str] = []
        self.state: str = VACANT
        self.epoch = 1
        self.worker_epoch = 1  # since which it has its variables; it may have gone on in higher ones since
        self.results_epoch = 1  # in which its worker was assigned, which has the results since then
        self.worker: int | None = None
        self.ephemeral = False
        self.created_at = now
        self.last_active = now
        self.lost_cause: str | None = None  # of the last worker's loss, until a fresh one reports it
        self.was_ready = False
        self.running: EvalTask | None = None  # has a slot
        self.next_up: EvalTask | None = None  # waits for a slot
        self.queue: deque[EvalTask] = deque()
        self.evals: deque[EvalTask] = deque()
        self.eval_count = 0  # ever accepted; numbers go on across epochs
        self.inflight: dict[int, WorkerRequest] = {}
        self.deferred: list[WorkerRequest] = []  # requests that wait for the worker, or for their eval to start
        self.waiters: list[ReadyWaiter] = []
        self.start_deadline: Deadline | None = None
        self.checkpoint_files = False
        self.snapshot: SnapshotSource | None = None  # the variables that a clone begins with, or a saved session
        self.hibernated: HibernatedState | None = None  # until a worker has its variables again
        self.kept_awake_at: float | None = None  # the last activity before it could not be hibernated
        self.branch_of: str | None = None  # the session that it began as a copy of
        self.has_packages = False  # an installer may have added some
        self.packages_of: str | None = None  # the session whose packages a clone begins with
        self.executable: str | None = None
        self.replacement: Session | None = None  # gets a worker in another environment, and hands it over
        self.replaces: Session | None = None
        self.history: deque[HistoryItem] = deque()
        self._history_bytes = 0
        self.event_buffer = EventBuffer()
        self.traffic = TrafficCounts()
        self.more_hosts: dict[str, float] = {}  # entries beyond its list, and until when
        self.host_deadline: Deadline | None = None  # when the next of them ends
        self.recent_moves: deque[str] = deque(maxlen=_RECENT_MOVES)

    @property
    def label(self) -> str:
        """The name shown to people."""
        return self.name or self.id

    def specs(self) -> list[WorkerSpec]:
        """Return the spec of its worker, and of the one that is to replace it."""
        return [self.spec, *([self.replacement.spec] if self.replacement is not None else [])]

    @property
    def directory(self) -> str | None:
        """The working directory, as far as it is known before the worker has reported it."""
        return None if self.cwd_unavailable else self.cwd

    @property
    def project(self) -> str | None:
        """The project whose default session it is."""
        return self.scope if self.scope.startswith("/") else None

    @property
    def holder(self) -> Holder:
        """The account that it is charged to."""
        return Holder(self.owner, self.agent or "")

    @property
    def needs_worker(self) -> bool:
        """True if its next eval takes a new worker."""
        return self.state in (VACANT, HIBERNATED)

    @property
    def is_new_branch(self) -> bool:
        """True for a branch that has not started yet."""
        return self.branch_of is not None and not self.was_ready

    @property
    def has_variables(self) -> bool:
        """True if its worker has the variables of its evals: it may be adopted by the next broker."""
        return self.state in (IDLE, BUSY, ADOPTING)

    @property
    def is_occupied(self) -> bool:
        """True if an eval runs or waits."""
        return self.running is not None or self.next_up is not None or bool(self.queue)

    @property
    def is_in_use(self) -> bool:
        """True if an eval runs or waits, or a worker is starting."""
        return self.replacement is not None or self.is_occupied or self.state not in (IDLE, VACANT, HIBERNATED)

    @property
    def has_unread(self) -> bool:
        """True if no client has got the result of one of its evals."""
        return any(task.is_unread for task in self.evals)

    def mark_undone(self, undone: Iterable[int], redone: Iterable[int]) -> list[EvalTask]:
        """Mark evals that count no more, and take the mark from those that count again. Return what has changed."""
        marks = dict.fromkeys(undone, True) | dict.fromkeys(redone, False)
        changed = []
        for task in (*self.evals, *(item.task for item in self.history)):
            mark = marks.get(task.eval_id, task.undone)
            if mark != task.undone:
                task.undone = mark
                changed.append(task)
        return changed

    def transition(self, move: str) -> None:
        """Change the state.

        Args:
            move: A move of `TRANSITIONS`.

        Raises:
            InvalidTransition: The table does not have this move for the session's state.
        """
        state = TRANSITIONS.get((self.state, move))
        if state is None:
            raise InvalidTransition(self, move)
        self.recent_moves.append(move)
        self.state = state

    def add_history(self, task: EvalTask, code: str) -> None:
        """Remember code that is run; the oldest is dropped when there is too much."""
        size = len(code) if code.isascii() else len(code.encode("utf-8", "replace"))
        self.history.append(HistoryItem(task, code, size))
        self._history_bytes += size
        while len(self.history) > self.limits.max_history or self._history_bytes > self.limits.history_bytes:
            self._history_bytes -= self.history.popleft().size

    def find_eval(self, eval_id: int) -> EvalTask | None:
        """Return a running, queued or remembered eval by its number."""
        for task in reversed(self.evals):
            if task.eval_id == eval_id:
                return task
        return None

    def trim_evals(self, most: int) -> None:
        """Remember at most so many finished evals, the newest. Running and waiting ones stay."""
        alive = len(self.queue) + (self.next_up is not None) + (self.running is not None)
        for _ in range(len(self.evals) - alive - most):
            self.evals.remove(next(task for task in self.evals if task.state is EvalTask.DONE))

    def waiting_evals(self) -> list[EvalTask]:
        """Return the evals without a slot, first in line first."""
        return ([self.next_up] if self.next_up is not None else []) + list(self.queue)

    def position(self, task: EvalTask, waiting_for_slots: int) -> int:
        """Return how many evals go before a waiting one: those of its session, or those that wait for a slot."""
        ahead = self.waiting_evals().index(task)
        return ahead + (1 if self.running is not None else waiting_for_slots)
