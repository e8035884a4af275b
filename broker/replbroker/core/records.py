"""Records of the journal: what the broker alone knows, for the broker after it.

Moments are in Unix seconds. A field that has its default is not written.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from replwire.identities import Principal
from replwire.link import HibernatedState, SnapshotSource


class SavedSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A worker's spec; see `WorkerSpec`."""

    runtime: str
    environment: str | None = None
    sandbox_overrides: bytes | None = None
    workspace: str | None = None
    principal: Principal | None = None


class SessionDetails(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Details that a session is rebuilt from. `worker` is the number of the worker with its variables."""

    spec: SavedSpec
    principal: Principal
    created_at: float
    worker: int | None = None
    worker_epoch: int = 1
    results_epoch: int = 1
    worker_identity: str = ""
    agent: str | None = None
    max_output_bytes: int = 0  # a rule's, where that is less than the limit
    shares: dict[str, str] = {}
    offered_to: str | None = None
    mode: str = "normal"
    mode_since: float = 0.0
    mode_reason: str | None = None
    cwd: str | None = None
    cwd_needed: bool = True
    cwd_unavailable: bool = False
    env: list[str] = []
    ephemeral: bool = False
    eval_count: int = 0
    was_ready: bool = False
    lost_cause: str | None = None
    executable: str | None = None
    snapshot: SnapshotSource | None = None
    hibernated: HibernatedState | None = None
    has_packages: bool = False
    packages_of: str | None = None
    branch_of: str | None = None


class SessionRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="session"):
    """A session. `cause` is why it ended, if nobody had asked for that; `details` are those of an open one."""

    owner: str
    name: str | None
    id: str
    epoch: int
    open: bool
    scope: str = ""
    cause: str | None = None
    details: SessionDetails | None = None


class EvalProgress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """The progress of an eval: not started, sent to its worker, or ended with a status."""

    epoch: int
    started_at: float | None = None
    status: list[str] = []
    duration_ms: float | None = None
    undone: bool = False
    has_key: bool = False


class SavedEval(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag="eval"):
    """An eval that was accepted.

    Attributes:
        body: The request as it came; None once it has ended.
        code: Its beginning, for lists.
        history: All of it, once it has ended and if the session's history has it.
        identity: Whose request it was, and `holder_agent` on which account.
        limit: Milliseconds that it may run, the setting that allows no more, and what a background job may have.
        key: Its idempotency key, `digest` what that is valid for, and `key_agent` the agent that it belongs to.
    """

    session: str
    eval_id: int
    route: int
    request_id: str
    op: str
    identity: str
    holder_agent: str
    submitted_at: float
    limit: tuple[int, str | None, int]
    progress: EvalProgress
    body: bytes | None = None
    code: str = ""
    history: str | None = None
    agent: str | None = None
    long: bool = False
    principal: Principal | None = None
    key: str | None = None
    key_agent: str = ""
    digest: bytes = b""


class SavedProgress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="update"):
    """The progress of an eval since its record."""

    session: str
    eval_id: int
    progress: EvalProgress


class WorkerRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="worker"):
    """A worker.

    Attributes:
        worker: Its number.
        token: The digest of its link token; empty once its session has left a process that serves others.
        handle: How the launcher finds its process; empty where that is another worker's.
        process: The number of the worker that began the process which serves this one; 0 for its own.
    """

    worker: int
    token: str = ""
    handle: str = ""
    process: int = 0

    @property
    def process_number(self) -> int:
        """The number of the process that serves it."""
        return self.process or self.worker


class KeyHistory(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The idempotency keys that a broker would know if they had ever been used.

    Attributes:
        instances: The brokers whose keys were all taken over, oldest first.
        dropped: By identity, the moment of its latest key that was dropped for lack of room.
    """

    instances: list[str] = []
    dropped: dict[str, float] = {}


Record = SessionRecord | SavedEval | SavedProgress | WorkerRecord


class SavedState(NamedTuple):
    """Everything that a broker leaves to the next one. No other name has had an epoch above `floor`.

    Attributes:
        floor: The highest epoch of forgotten names.
        sessions: Sessions, open and closed ones.
        evals: Their evals, in the order of their acceptance.
        workers: Workers that may be alive.
        last_worker: The highest number that a worker has had.
        generation: How many brokers there were.
        private_dir: The directory with the workers' socket.
        keys: Which idempotency keys are among the evals.
        boot: Id of the machine's start at that time; empty if unknown.
        machine_restarted: Whether the machine has been started since.
    """

    floor: int
    sessions: list[SessionRecord]
    evals: list[SavedEval] = []  # noqa: RUF012 - never changed
    workers: list[WorkerRecord] = []  # noqa: RUF012 - never changed
    last_worker: int = 0
    generation: int = 0
    private_dir: str | None = None
    keys: KeyHistory = KeyHistory()
    boot: str = ""
    machine_restarted: bool = False
