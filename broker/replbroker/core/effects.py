"""Effects: what the core wants done. The shell around it does them in order, and reports back failures."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from replbroker.core.records import Record
from replwire.ext.verdicts import HookRequest
from replwire.identities import Principal
from replwire.network import TrafficRecord

Peer = bytes  # a transport's name for one connection; opaque here


class WorkerSpec(NamedTuple):
    """The properties of a worker that cannot change once it runs: a session may take a warm one with the same spec.

    Attributes:
        runtime: The runtime.
        environment: The Python environment as it was asked for; None is the runtime's own.
        sandbox_overrides: What the session asked of its sandbox, as JSON.
        workspace: The working directory, where a running sandbox cannot be given one.
        principal: The owner, if something of the owner's is opened before the worker is assigned.
    """

    runtime: str
    environment: str | None = None
    sandbox_overrides: bytes | None = None
    workspace: str | None = None
    principal: Principal | None = None

    def for_principal(self, principal: Principal) -> WorkerSpec:
        """Return the spec for a session of this owner.

        A worker that opens nothing at its start can serve anybody. An environment given by path is only for the owner
        who chose it, because its code runs with the rights of the session's owner.
        """
        spec = self._replace(environment=None) if self.is_foreign_to(principal) else self
        return spec._replace(principal=None if spec.environment is None and spec.workspace is None else principal)

    def is_foreign_to(self, principal: Principal) -> bool:
        """Return whether somebody else chose the environment, by its path."""
        by_path = self.environment is not None and not self.environment.startswith("@")
        return by_path and self.principal is not None and self.principal.identity != principal.identity

    def __str__(self) -> str:
        return self.runtime if self.environment is None else f"{self.runtime} {self.environment}"


class ToClient(msgspec.Struct, frozen=True, gc=False):
    """Send these bytes to a client.

    Attributes:
        peer: The connection.
        body: One encoded message.
        output_of: For live output, the id of its request. Such a message may be dropped when the client reads too
            slowly, and is counted under this id.
        more: The next effect is for the same client, and may travel with this one.
        event: A dropped message counts as an event of the subscription that `output_of` names.
    """

    peer: Peer
    body: bytes | memoryview
    output_of: str | None = None
    more: bool = False
    event: bool = False


class ToWorker(msgspec.Struct, frozen=True, gc=False):
    """Send this frame to a worker that has shown its token."""

    worker: int
    frame: bytes


class CloseConnection(msgspec.Struct, frozen=True, gc=False):
    """Close a client's connection after its replies were sent, where the transport has connections to close.

    With `at_once` close it on ZeroMQ too, and without what the client has not read.
    """

    peer: Peer
    at_once: bool = False


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Read nothing more from a client, and end its connection a moment later, after its replies were sent."""

    peer: Peer


class PauseReading(msgspec.Struct, frozen=True, gc=False):
    """Read nothing from a client until a moment, where the transport can leave its messages unread."""

    peer: Peer
    until: float


class Spawn(msgspec.Struct, frozen=True, gc=False):
    """Start a worker under this number."""

    worker: int
    spec: WorkerSpec


class StartBranch(msgspec.Struct, frozen=True, gc=False):
    """Have the process of a worker serve another session, under a number of its own.

    Attributes:
        worker: The number of the new worker.
        source: The worker whose session is copied.
        process: The number of the process.
        checkpoint: The checkpoint that the new session begins with.
    """

    worker: int
    source: int
    process: int
    checkpoint: int


class LeaveWorker(msgspec.Struct, frozen=True, gc=False):
    """End a worker whose process serves others, too. Its frames are ignored from here on.

    One that has not connected yet is told when it does: the core answers its HELLO with this effect.
    """

    worker: int


class RunHooks(msgspec.Struct, frozen=True, gc=False):
    """Run the hooks on an eval, and call `BrokerCore.handle_verdict`."""

    route: int
    question: HookRequest


class RunOperation(msgspec.Struct, frozen=True, gc=False):
    """Run an operation of an extension, and call `BrokerCore.on_operation_ended`.

    Attributes:
        number: Number of the run.
        op: Name of the operation.
        body: The request as it came.
        principal: The caller.
        deadline: When its time is over, in monotonic seconds.
    """

    number: int
    op: str
    body: bytes
    principal: Principal
    deadline: float


class EndOperation(msgspec.Struct, frozen=True, gc=False):
    """Give up the run of an operation: its caller has its final reply."""

    number: int


class Kill(msgspec.Struct, frozen=True, gc=False):
    """Kill a worker and all processes it started. Its frames are ignored from here on."""

    worker: int


class SaveRecords(msgspec.Struct, frozen=True, gc=False):
    """Save these records before the effects that follow, which tell clients and workers of them."""

    records: list[Record]


class WriteSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Append a part to a snapshot's file for a request, and call `BrokerCore.on_snapshot_written`."""

    snapshot: str
    data: bytes
    peer: Peer
    request_id: str
    last: bool


class DeleteSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Delete a snapshot's file, if it still exists."""

    path: str


class Audit(msgspec.Struct, frozen=True, gc=False):
    """Write a line of the audit: a request has its final reply. `outcome` is `ok`, a status word or an error code."""

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
    traffic: TrafficRecord | None = None  # of a session: then there is no request


class PublishEvent(msgspec.Struct, frozen=True, gc=False):
    """Give an event to the event sinks.

    Attributes:
        type: The type of the event.
        transcript_id: The transcript that stores it: a session's id, `broker`, or None.
        body: The encoded event.
        when: The moment, in monotonic seconds.
    """

    type: str
    transcript_id: str | None
    body: bytes
    when: float


class RereadConfig(msgspec.Struct, frozen=True, gc=False):
    """Read the config file again for a request, and call `BrokerCore.on_config_reread`."""

    peer: Peer
    request_id: str


class DeleteEnvironment(msgspec.Struct, frozen=True, gc=False):
    """Delete a named environment that no session has, and call `BrokerCore.on_environment_removed`."""

    environment: str


class StartEgress(msgspec.Struct, frozen=True, gc=False):
    """Start the egress proxy, if none runs: an installer is about to need it."""


class DeletePackages(msgspec.Struct, frozen=True, gc=False):
    """Delete the packages that a session had installed."""

    session: str


class MeasureMemory(msgspec.Struct, frozen=True, gc=False):
    """Measure the memory that the machine has left, and call `BrokerCore.on_memory_measured`."""


class Log(msgspec.Struct, frozen=True, gc=False):
    """Write a line to the broker's log."""

    text: str


class StopBroker(msgspec.Struct, frozen=True, gc=False):
    """End the process: every request has its final reply.

    Attributes:
        why: The reason.
        keep: Worker processes that stay alive, for the next broker at the endpoint.
        restart: The process is to begin again as the next broker.
    """

    why: str
    keep: frozenset[int] = frozenset()
    restart: bool = False


Effect = (
    ToClient
    | ToWorker
    | CloseConnection
    | Disconnect
    | PauseReading
    | Spawn
    | StartBranch
    | LeaveWorker
    | RunHooks
    | RunOperation
    | EndOperation
    | Kill
    | SaveRecords
    | WriteSnapshot
    | DeleteSnapshot
    | Audit
    | PublishEvent
    | RereadConfig
    | DeleteEnvironment
    | DeletePackages
    | StartEgress
    | MeasureMemory
    | Log
    | StopBroker
)
