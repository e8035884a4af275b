"""Operations on checkpoints: moments of a session's state that can be restored."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.ops.base import QueuedRequest, SessionRequest

CheckpointName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A(?=.*[^0-9])[A-Za-z0-9._-]+\Z")]
CheckpointReference = Annotated[int, Meta(ge=1)] | Annotated[str, Meta(min_length=1, max_length=64)]


class Checkpoint(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Keep the session's state of this moment, for `rollback`.

    `name` is unique in the session and has a letter; a checkpoint with a name is dropped by request only. Waits for
    the running eval.
    """

    returns: ClassVar[tuple[str, ...]] = (
        "checkpoint",
        "checkpoint-name",
        "session",
        "name",
        "epoch",
        "state",
        "eval-id",
        "queue-position",
        "duration-ms",
        "max-eval-time-ms",
        "not-restored",
        "notice",
    )

    session: str
    name: CheckpointName | None = None

    def summary(self) -> str:
        return "checkpoint" if self.name is None else f"checkpoint {self.name}"


class LsCheckpoints(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """List the session's checkpoints, oldest first."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("checkpoints", "dropped", "checkpoints-off")


class Rollback(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Restore the session's state of a checkpoint, `to` its number or name.

    Without `to` the last eval is undone; that is refused if it would undo further evals. A running eval is interrupted,
    queued ones end with `session-reset`.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = (
        "checkpoint",
        "checkpoint-name",
        "session",
        "name",
        "epoch",
        "state",
        "undone-evals",
        "redone-evals",
        "not-restored",
        "notice",
    )

    to: CheckpointReference | None = None


class Diff(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Show what has changed in the session's directory since a checkpoint, by default the newest before the last eval.

    Only for a session whose checkpoints keep files. `patch` has the changes of text files, as `diff -u` does.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("checkpoint", "checkpoint-name", "file-changes", "patch", "truncated")

    checkpoint: CheckpointReference | None = None


class DropCheckpoint(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Drop a checkpoint, by number or name."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("checkpoint", "checkpoint-name")

    checkpoint: CheckpointReference


class Branch(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Open a session `name` that begins as a copy of `session`: as it is now, or as it was at the checkpoint `at`.

    The copy is made by fork, so everything is in it. Branches share the sandbox of their source, its limits, directory,
    owner and shares. Only the owner may branch. Waits for the running eval of the source.
    """

    returns: ClassVar[tuple[str, ...]] = (
        "new-session",
        "session",
        "name",
        "branch-of",
        "checkpoint",
        "epoch",
        "cwd",
        "created",
        "state",
        "eval-id",
        "queue-position",
        "max-eval-time-ms",
        "not-restored",
        "notice",
    )

    session: str
    name: str
    at: CheckpointReference | None = None

    def summary(self) -> str:
        return f"branch to {self.name}" + ("" if self.at is None else f" at {self.at}")
