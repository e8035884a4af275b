"""Operations on snapshots: a session's variables as a file that outlives broker and host.

A snapshot travels in parts, one request each, so that no buffer is longer than a part.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.ops.base import Natural, Part, QueuedRequest, Request, SessionRequest

SnapshotId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[0-9a-z-]+\Z")]


class Save(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Write a snapshot of the session's variables, to be fetched with `get-snapshot`.

    The reply lists what cannot be saved, with the reason. Waits for the running eval. The session's worker keeps one
    snapshot, until its last part was fetched or `transfer-idle-ms` after the latest one.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = (
        "snapshot",
        "session",
        "name",
        "epoch",
        "state",
        "eval-id",
        "queue-position",
        "count",
        "bytes",
        "skipped",
        "duration-ms",
        "max-eval-time-ms",
        "out",
        "notice",
    )

    long: ClassVar[bool] = True

    session: str


class Hibernate(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Store the session's variables at the broker, and end its processes; the next eval brings them back.

    The reply lists what cannot be stored, with the reason, and so does the first eval after it. Waits for the running
    eval. Outputs of earlier evals and checkpoints are gone. The session stays open, also across restarts of the host.
    """

    returns: ClassVar[tuple[str, ...]] = (
        "session",
        "name",
        "epoch",
        "state",
        "eval-id",
        "queue-position",
        "count",
        "bytes",
        "skipped",
        "duration-ms",
        "max-eval-time-ms",
    )

    long: ClassVar[bool] = True

    session: str


class GetSnapshot(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Fetch the next part of a saved snapshot, which begins at `offset`.

    The parts together are a file of `bytes` bytes, which ends with a checksum.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("data", "offset", "bytes")

    snapshot: SnapshotId
    offset: Natural


class PutSnapshot(Request, frozen=True, kw_only=True, rename="kebab"):
    """Send a part of a snapshot to the broker, for `new-session` on the same connection.

    The first part has no `snapshot`, and contains the whole header of the file; `offset` is the number of bytes sent
    before. With `last` the file's checksum is verified. A connection has one snapshot at a time.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("snapshot", "bytes")

    snapshot: SnapshotId | None = None
    offset: Natural = 0
    data: Part
    last: bool = False
