"""Evals, and other requests that belong to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from replbroker.core.effects import Peer
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.quotas import Holder
from replbroker.core.limits.time_limits import TimeLimit
from replbroker.core.sessions.output_summary import OutputSummary
from replwire.deadlines import Deadline
from replwire.identities import Principal
from replwire.link import BranchedBody, SnapshotBody
from replwire.ops import Queueable, Request

if TYPE_CHECKING:
    from replbroker.core.sessions.session import Session

CODE_SHOWN: Final = 80  # characters of an eval's code in lists


class IdempotencyKey(NamedTuple):
    """A key, the account that it belongs to, and a digest of what it is valid for."""

    holder: Holder
    text: str
    digest: bytes


class EvalTask:
    """One eval, from its request to its end. `peer` is None once no client waits for its result."""

    __slots__ = (
        "agent_label",
        "body",
        "cancel_reason",
        "code",
        "deadline",
        "duration_ms",
        "epoch",
        "eval_id",
        "hide_code",
        "hook_deadline",
        "is_repeatable",
        "is_saved",
        "is_unread",
        "key",
        "op",
        "output_summary",
        "peer",
        "principal",
        "queued_notice",
        "request",
        "request_id",
        "route",
        "session",
        "slot_request",
        "started_at",
        "state",
        "status",
        "submitted_at",
        "time_limit",
        "undone",
        "wait_deadline",
    )

    QUEUED: Final = "queued"
    STARTING: Final = "starting"  # has its slot, the worker does not have it yet
    RUNNING: Final = "running"
    DONE: Final = "done"

    def __init__(
        self,
        session: Session,
        route: int,
        peer: Peer | None,
        slot_request: SlotRequest,
        request: Queueable,
        time_limit: TimeLimit,
        now: float,
    ) -> None:
        session.eval_count += 1
        self.session = session
        self.route = route
        self.peer = peer
        self.slot_request = slot_request
        self.agent_label = request.agent
        self.principal: Principal | None = None  # the owner of a clone
        self.request_id = request.id
        self.eval_id = session.eval_count
        self.epoch = session.epoch
        self.body: bytes | None = None
        self.code = request.summary()[:CODE_SHOWN]
        self.request: Queueable | None = request  # until it runs
        self.time_limit = time_limit
        self.op = request.op
        self.key: IdempotencyKey | None = None  # while the cache has it
        self.is_saved = False  # the journal has its record
        self.is_repeatable = getattr(request, "idempotency_key", None) is not None
        self.is_unread = False  # it has ended, and no client has its result
        self.undone = False  # by a rollback or a crash
        self.state: str = self.QUEUED
        self.status: list[str] = []
        self.submitted_at = now
        self.started_at: float | None = None
        self.duration_ms: float | None = None
        self.cancel_reason: str | None = None
        self.output_summary: OutputSummary | None = None  # while events have listeners
        self.hide_code = False  # the code is stored nowhere until hooks have allowed it
        self.hook_deadline: Deadline | None = None  # set while hooks have not given a verdict
        self.deadline: Deadline | None = None
        self.queued_notice: Deadline | None = None
        self.wait_deadline: Deadline | None = None


class WorkerRequest:
    """A request other than an eval that the session's worker answers."""

    __slots__ = (
        "agent_label",
        "body",
        "deadline",
        "eval_id",
        "holder",
        "op",
        "peer",
        "request_id",
        "route",
        "session",
        "wait_ms",
    )

    def __init__(self, session: Session, route: int, peer: Peer, holder: Holder, request: Request, body: bytes) -> None:
        self.session = session
        self.route = route
        self.peer: Peer | None = peer
        self.holder = holder
        self.agent_label = request.agent
        self.request_id = request.id
        self.op = request.op
        self.body = body
        self.eval_id = 0
        self.wait_ms = 0
        self.deadline: Deadline | None = None


class ReadyWaiter:
    """A client that waits for a session's worker, after `new-session`, `reset`, `clone`, `branch` or `env`."""

    __slots__ = ("branched", "cause", "created", "is_clone", "peer", "request_id", "snapshot")

    def __init__(
        self,
        peer: Peer | None,
        request_id: str,
        created: bool | None,
        snapshot: SnapshotBody | None = None,
        is_clone: bool = False,
        cause: str | None = None,
        branched: BranchedBody | None = None,
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.created = created
        self.snapshot = snapshot
        self.is_clone = is_clone  # its reply names the new session in `new-session` as well
        self.branched = branched
        self.cause = cause  # of the end of the session that had this name before


class HistoryItem(NamedTuple):
    """One entry of a session's history."""

    task: EvalTask
    code: str
    size: int  # in bytes
