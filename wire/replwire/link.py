"""Link between broker and worker: one frame per message, a fixed header followed by the body.

The broker reads the header and never the body of a reply: that goes to the client as the worker wrote it. Broker to
worker: ASSIGN, REQUEST, CANCEL, NETWORK, RESUME, ADOPT, BRANCH, LEAVE. Worker to broker: HELLO, READY, ASSIGNED,
HEARTBEAT, OUTPUT, REPLY, SNAPSHOT, INTERPRETER_EXITED, ROLLED_BACK, ADOPTED, BRANCHED, CHECKPOINTED.

A worker process serves one session, or a session and its branches. Each of them has a connection of its own, which
shows a token of its own, and is a worker of its own number to the broker.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import msgspec

from replwire.identities import Principal
from replwire.limits import Limits
from replwire.network import NetworkRules
from replwire.policy import Checkpoints
from replwire.replies import SkippedName

_HEADER = struct.Struct("!BBIIQI")
HEADER_BYTES = _HEADER.size
LINK_VERSION = 2  # 1: a worker ends with its broker


class FrameKind(enum.IntEnum):
    """Type of a frame."""

    HELLO = 1  # worker: connected, or again so, to another broker; has the token it was started with
    READY = 2  # worker: the interpreter is ready
    ASSIGN = 3  # broker: the worker now belongs to this session
    ASSIGNED = 4  # worker: directory and environment are set, or why not
    REQUEST = 5  # broker: a client's request, unchanged
    CANCEL = 6  # broker: interrupt the eval of this route
    OUTPUT = 7  # worker: live output for the client of a route; may be dropped for a slow one
    REPLY = 8  # worker: a message for the client of a route; never dropped
    HEARTBEAT = 9  # worker: still alive
    INTERPRETER_EXITED = 10  # worker: the interpreter died; the broker kills the worker
    SNAPSHOT = 11  # worker: a session's variables are in a file, for a clone; ends its route
    NETWORK = 12  # broker: what the session may reach from now on
    ROLLED_BACK = 13  # worker: the session goes on from a checkpoint, and its epoch is over
    RESUME = 14  # broker: the epoch after ROLLED_BACK; frames of earlier ones are void
    ADOPT = 15  # broker, to a worker of the broker before it: the session goes on, in this epoch
    ADOPTED = 16  # worker: its first frame after ADOPT; the replies that the broker before it did not count follow
    BRANCHED = 17  # worker: a checkpoint waits to be the beginning of a branch; ends its route
    BRANCH = 18  # broker: start an interpreter from a checkpoint, for another session
    LEAVE = 19  # broker: this session is over, and others of the worker process go on
    CHECKPOINTED = 20  # worker: automatic checkpoints were taken; at most once a second


class Outcome(enum.IntEnum):
    """End of a route, readable without the body. NONE: it is still open."""

    NONE = 0
    OK = 1
    ERROR = 2
    INTERRUPTED = 3
    TIMEOUT = 4


class Header(NamedTuple):
    """Header of a frame.

    `route` is the broker's number for a request, `eval` the session's number for an eval, 0 for none. `first` is not 0
    if the body of a REPLY has two messages, a value and the end of its eval: it is the length of the first one. Each
    frame costs a wake-up, so messages sent together travel together.
    """

    kind: int
    outcome: int
    epoch: int
    eval: int
    route: int
    first: int


def pack(
    kind: int, body: bytes = b"", *, outcome: int = 0, epoch: int = 0, eval: int = 0, route: int = 0, first: int = 0
) -> bytes:
    """Encode header and body as one frame."""
    return _HEADER.pack(kind, outcome, epoch, eval, route, first) + body


def unpack(frame: bytes) -> Header:
    """Decode the header of a frame.

    Raises:
        ValueError: the frame is shorter than a header
    """
    try:
        return Header._make(_HEADER.unpack_from(frame))
    except struct.error:
        raise ValueError("frame shorter than its header") from None


class HelloBody(msgspec.Struct, frozen=True):
    """Body of HELLO. A worker without a session sends token and link version alone.

    `last_eval` is the highest eval that the worker has ever been sent, `running` the one that runs, 0 for none.
    """

    token: str
    link: int = 1
    session: str | None = None
    epoch: int = 0
    last_eval: int = 0
    running: int = 0


class AdoptBody(msgspec.Struct, frozen=True):
    """Body of ADOPT. `eval` is the one eval that was sent and whose end was not received, with its route; 0 for none.

    `instance` is the broker's own id.
    """

    instance: str
    eval: int = 0
    route: int = 0


class AdoptedBody(msgspec.Struct, frozen=True):
    """Body of ADOPTED. `unknown`: the eval of ADOPT has never reached the worker, so the broker sends it again."""

    unknown: bool = False


class SnapshotSource(msgspec.Struct, frozen=True):
    """A snapshot that a session begins with: `size` bytes from `offset` of a file; None: to its end.

    `version` is that of the runtime that wrote it, if that may be another one.
    """

    path: str
    offset: int = 0
    size: int | None = None
    version: str | None = None


class HibernatedState(msgspec.Struct, frozen=True):
    """The variables of a hibernated session: a snapshot in a file, and what it lacks. `since` is in Unix seconds."""

    path: str
    since: float
    count: int
    bytes: int
    skipped: list[SkippedName] = []


class AssignBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ASSIGN. `lost_cause` says how the session lost its previous worker; reported once."""

    session: str
    name: str | None
    owner: Principal  # with whose rights directories and files are opened
    cwd: str | None
    env: list[str]
    limits: Limits
    lost_cause: str | None = None
    ephemeral: bool = False
    cwd_needed: bool = True  # False: the session may start without it
    restore: SnapshotSource | None = None
    hibernated: HibernatedState | None = None  # what the session begins with again
    network: NetworkRules | None = None  # what it may reach by list
    checkpoints: Checkpoints = "auto"
    checkpoint_files: bool = False
    packages_of: str | None = None  # session whose installed packages it begins with


class AssignedBody(msgspec.Struct, frozen=True):
    """Body of ASSIGNED. `checkpoints_off` is the reason why no checkpoint can be taken; empty: they can."""

    error: str | None = None
    executable: str | None = None
    skipped: list[SkippedName] = []
    notice: str | None = None  # why there is no working directory although one was requested
    checkpoints_off: str = "this worker takes none"
    restored: int = 0  # variables of a snapshot


class SnapshotBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of SNAPSHOT."""

    path: str
    count: int
    bytes: int
    skipped: list[SkippedName]


class HeartbeatBody(msgspec.Struct, frozen=True):
    """Body of HEARTBEAT: resource use of the session's processes, as seen by the worker."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class CancelBody(msgspec.Struct, frozen=True):
    """Body of CANCEL. `limit_ms` is set if a time limit was reached; `hint` says what to do about it.

    `kill` is set if the code has ignored its interrupt: the cause for which the interpreter is killed.
    """

    limit_ms: int | None = None
    hint: str | None = None
    kill: str | None = None


class ExitedBody(msgspec.Struct, frozen=True):
    """Body of INTERPRETER_EXITED: the cause of death, in words."""

    cause: str


class RolledBackBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ROLLED_BACK, whose route is that of the request, or 0 after a crash.

    `eval_id` is the last eval that the checkpoint includes, `last_eval` the last one that reached the interpreter.
    `undone` are the evals that count no more, oldest first, `redone` those that count again. `cause` is the reason of a
    crash, in words; `not_restored` says in sentences what did not come back.
    """

    checkpoint: int
    name: str | None = None
    eval_id: int
    last_eval: int
    undone: list[int] = []
    redone: list[int] = []
    cause: str | None = None
    not_restored: list[str] = []


class BranchedBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of BRANCHED: the checkpoint, the evals that it contains, and what a copy of it will not have."""

    checkpoint: int
    evals: list[int] = []
    not_restored: list[str] = []


class CheckpointedBody(msgspec.Struct, frozen=True):
    """Body of CHECKPOINTED: the newest automatic checkpoint, the last eval in it, and the number taken since the last.

    Automatic ones come with every eval, and a frame for each would cost the broker as much as the eval.
    """

    checkpoint: int
    eval: int
    count: int


class BranchBody(msgspec.Struct, frozen=True):
    """Body of BRANCH: the token that the branch's connection shows, and the checkpoint that it begins with."""

    token: str
    checkpoint: int


class ResumeBody(msgspec.Struct, frozen=True):
    """Body of RESUME. `report`: no client was told of the rollback, so the next result has to say it."""

    report: bool


encode = msgspec.json.Encoder().encode
