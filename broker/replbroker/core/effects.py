"""What the core wants done. The shell around it does it, in order, and reports back what failed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from replwire.ext.verdicts import HookRequest
from replwire.identities import Principal

Peer = bytes  # a transport's name for one connection; opaque here


class WorkerSpec(NamedTuple):
    """What cannot be changed about a worker once it runs, and so tells which warm ones a session may take.

    `environment` is the python environment as it was asked for; None is the runtime's own.
    """

    runtime: str
    environment: str | None = None
    sandbox_overrides: bytes | None = None  # what the session asked of its sandbox, as JSON
    workspace: str | None = None  # where folders cannot be given to a sandbox that runs already
    principal: Principal | None = None  # whose it will be, where something is opened before it is anybody's

    def for_principal(self, asker: Principal) -> WorkerSpec:
        """The same for a session of this owner: a worker that opens nothing at its start is anybody's. An environment
        is for who named it: its code would run with the rights of whoever the session has come to since."""
        spec = self._replace(environment=None) if self.was_chosen_by_another(asker) else self
        return spec._replace(principal=None if spec.environment is None and spec.workspace is None else asker)

    def was_chosen_by_another(self, asker: Principal) -> bool:
        """Whether somebody else than this one chose the environment, by its path."""
        named = self.environment is not None and not self.environment.startswith("@")
        return named and self.principal is not None and self.principal.identity != asker.identity

    def __str__(self) -> str:
        return self.runtime if self.environment is None else f"{self.runtime} {self.environment}"


class ToClient(msgspec.Struct, frozen=True, gc=False):
    """Send these bytes to a client. `output_of` is set for live output: the id of the request that it belongs to.
    Such a message is lost, and counted under that id, when the client reads too slowly."""

    peer: Peer
    body: bytes | memoryview
    output_of: str | None = None
    more: bool = False  # the next effect is for the same client, and may travel with this one
    event: bool = False  # what is lost is counted as an event of the subscription that `output_of` names


class ToWorker(msgspec.Struct, frozen=True, gc=False):
    """Send this frame to a worker that has said hello."""

    worker: int
    frame: bytes


class CloseConnection(msgspec.Struct, frozen=True, gc=False):
    """Close this client's connection once its answers have left, where the transport has connections to close."""

    peer: Peer
    at_once: bool = False  # on ZeroMQ too, and what it has not read is lost


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Hear nothing more of this client, and end its connection a moment later, when what was said to it has left."""

    peer: Peer


class PauseReading(msgspec.Struct, frozen=True, gc=False):
    """Hear nothing of this client until that moment, where the transport can leave what it sends unread."""

    peer: Peer
    until: float


class Spawn(msgspec.Struct, frozen=True, gc=False):
    """Start a worker under this number, with this interpreter."""

    worker: int
    spec: WorkerSpec


class RunHooks(msgspec.Struct, frozen=True, gc=False):
    """Ask the hooks about this eval."""

    route: int
    question: HookRequest


class Kill(msgspec.Struct, frozen=True, gc=False):
    """Kill a worker and all it started. Nothing more will be heard of it."""

    worker: int


class SessionRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What has to outlive the broker of a session: whose it is, its epoch, and whether it is open. `cause` says how one
    ended that nobody asked to end."""

    owner: str
    name: str | None
    id: str
    epoch: int
    open: bool
    scope: str = ""
    cause: str | None = None


class SavedSessions(NamedTuple):
    """All records. What is not among them has had no epoch above `floor`."""

    floor: int
    records: list[SessionRecord]


class SaveSession(msgspec.Struct, frozen=True, gc=False):
    """Keep this record before anything else is done: the effects that follow tell clients of it."""

    record: SessionRecord


class DeleteSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Remove a snapshot's file, if it is still there."""

    path: str


class Audit(msgspec.Struct, frozen=True, gc=False):
    """A request was answered for good: a line for the audit. `outcome` is `ok`, a status word or a fault word."""

    peer: Peer
    identity: str
    when: float
    request_id: str
    op: str | None
    agent: str | None
    session: str | None
    outcome: str
    err: str | None
    latency_ms: float
    repeated: int = 1  # requests that this stands for


class PublishEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, for the transcript of this session (`broker` without one, None: nobody keeps it) and who else wants
    all of them. `when` is monotonic."""

    type: str
    transcript_id: str | None
    body: bytes
    when: float


class RereadConfig(msgspec.Struct, frozen=True, gc=False):
    """Read the config file again for this request, and tell `reread`."""

    peer: Peer
    request_id: str


class DeleteEnvironment(msgspec.Struct, frozen=True, gc=False):
    """Remove this named environment, which no session has, and tell `environment_removed`."""

    environment: str


class MeasureMemory(msgspec.Struct, frozen=True, gc=False):
    """See what memory the machine has left, and tell `machine_seen`."""


class Log(msgspec.Struct, frozen=True, gc=False):
    """A line for the broker's log."""

    text: str


class StopBroker(msgspec.Struct, frozen=True, gc=False):
    """Everything is answered: end the process."""

    why: str


Effect = (
    ToClient
    | ToWorker
    | CloseConnection
    | Disconnect
    | PauseReading
    | Spawn
    | RunHooks
    | Kill
    | SaveSession
    | DeleteSnapshot
    | Audit
    | PublishEvent
    | RereadConfig
    | DeleteEnvironment
    | MeasureMemory
    | Log
    | StopBroker
)
