"""What broker and worker say to each other: one frame a message, a fixed header and then the body.

The broker reads the header and never the body of an answer: that goes to the client as the worker wrote it.
Broker to worker: CLAIM, ASK, CANCEL. Worker to broker: HELLO, READY, CLAIMED, BEAT, OUT, SAY, GONE.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import msgspec

from replwire.identities import Principal
from replwire.limits import Limits
from replwire.replies import SkippedName

_HEADER = struct.Struct("!BBIIQI")
HEADER_BYTES = _HEADER.size


class FrameKind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1  # worker: here I am, with the one-time token I was started with
    READY = 2  # worker: the interpreter is up
    ASSIGN = 3  # broker: you belong to this session now
    ASSIGNED = 4  # worker: folder and environment are set, or why not
    REQUEST = 5  # broker: a client's request, its bytes untouched
    CANCEL = 6  # broker: interrupt the eval of this route
    OUTPUT = 7  # worker: live output for the client of a route; may be dropped for a slow one
    REPLY = 8  # worker: a message for the client of a route; never dropped
    HEARTBEAT = 9  # worker: still here
    INTERPRETER_EXITED = 10  # worker: the interpreter died; kill me
    SNAPSHOT = 11  # worker: a session's names are in a file, for a clone; ends its route


class Outcome(enum.IntEnum):
    """How a route ended, readable without the body. NONE: it has not."""

    NONE = 0
    OK = 1
    ERROR = 2
    INTERRUPTED = 3
    TIMEOUT = 4


class Header(NamedTuple):
    """Route is the broker's number for one request; eval is the session's number for one eval, 0 for none.

    `first` is not 0 when the body of a SAY is two messages, as a value and the end of its eval are: it is the
    length of the first one. Each frame costs a wake-up on the way, so what is said together travels together.
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
    """Header and body as one frame."""
    return _HEADER.pack(kind, outcome, epoch, eval, route, first) + body


def unpack(frame: bytes) -> Header:
    """The header of a frame. Raises ValueError when it is shorter than one."""
    try:
        return Header._make(_HEADER.unpack_from(frame))
    except struct.error:
        raise ValueError("frame shorter than its header") from None


class HelloBody(msgspec.Struct, frozen=True):
    """Body of HELLO."""

    token: str


class AssignBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of CLAIM. `lost` says how the session lost the worker before this one, to be told once."""

    session: str
    name: str | None
    asker: Principal  # whose rights directories and files are opened with
    cwd: str | None
    env: list[str]
    limits: Limits
    lost: str | None = None
    ephemeral: bool = False
    cwd_needed: bool = True  # False: the session may do without it
    restore: str | None = None  # file with the names of another session, to begin with


class AssignedBody(msgspec.Struct, frozen=True):
    """Body of CLAIMED."""

    error: str | None = None
    executable: str | None = None
    left_behind: list[SkippedName] = []
    notice: str | None = None  # why it has no folder although one was wished for


class SnapshotBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of DUMPED."""

    path: str
    count: int
    bytes: int
    left_behind: list[SkippedName]


class HeartbeatBody(msgspec.Struct, frozen=True):
    """Body of BEAT: what the session's processes use, as far as the worker can see it."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class CancelBody(msgspec.Struct, frozen=True):
    """Body of CANCEL. `limit_ms` is set when a time limit asks, `hint` says then what to do about it."""

    limit_ms: int | None = None
    hint: str | None = None


class ExitedBody(msgspec.Struct, frozen=True):
    """Body of GONE: how the interpreter ended, in words."""

    cause: str


encode = msgspec.json.Encoder().encode
