"""Types of events about a session's state as a whole: copied, branched, saved, restored."""

from __future__ import annotations

from typing import Annotated, ClassVar

from replwire.documented import documented
from replwire.events.base import Event


class SessionForked(Event, frozen=True, kw_only=True, rename="kebab", tag="session/forked"):
    """The session was created with copies of another session's variables."""

    source: Annotated[str, documented("id of the copied session")]
    count: Annotated[int, documented("variables copied")]
    skipped: Annotated[list[str], documented("variables not copied, at most 100")]


class SessionSaved(Event, frozen=True, kw_only=True, rename="kebab", tag="session/saved"):
    """A snapshot of the session's variables was written, for a client to fetch."""

    count: Annotated[int, documented("variables saved")]
    bytes: Annotated[int, documented("size of the file")]


class SessionRestored(Event, frozen=True, kw_only=True, rename="kebab", tag="session/restored"):
    """The session was created with the variables of a saved one."""

    source: Annotated[str | None, documented("name of the saved session")] = None
    saved_at: Annotated[str, documented("time of the snapshot, as its file says")]
    count: Annotated[int, documented("variables saved")]
    skipped: Annotated[list[str], documented("variables not saved, at most 100")]


class SessionCheckpoint(Event, frozen=True, kw_only=True, rename="kebab", tag="session/checkpoint"):
    """The session's state was kept by request."""

    checkpoint: Annotated[int, documented("its number")]
    name: str | None = None


class SessionAutoCheckpoint(Event, frozen=True, kw_only=True, rename="kebab", tag="session/auto-checkpoint"):
    """Automatic checkpoints were taken. Sent at most once a second for a session."""

    canonical: ClassVar[bool] = False

    checkpoint: Annotated[int, documented("number of the newest")]
    count: Annotated[int, documented("checkpoints since the last such event")]


class SessionRolledBack(Event, frozen=True, kw_only=True, rename="kebab", tag="session/rolled-back"):
    """The session goes on from a checkpoint, by request or because its interpreter died."""

    checkpoint: Annotated[int, documented("its number")]
    name: str | None = None
    undone: Annotated[list[int], documented("evals that count no more")]
    redone: Annotated[list[int], documented("evals undone before that count again")]
    cause: Annotated[str | None, documented("cause of the interpreter's death; absent: a client asked for it")] = None
    epoch: Annotated[int, documented("the new epoch")]


class SessionHibernated(Event, frozen=True, kw_only=True, rename="kebab", tag="session/hibernated"):
    """The session's variables were stored at the broker, and its processes have ended."""

    epoch: Annotated[int, documented("the new epoch")]
    count: Annotated[int, documented("variables that were stored")]
    bytes: int
    skipped: Annotated[list[str], documented("variables that could not be stored, at most 100")]


class SessionResumed(Event, frozen=True, kw_only=True, rename="kebab", tag="session/resumed"):
    """A hibernated session has its variables again, in a new worker."""

    epoch: int
    count: Annotated[int, documented("variables that came back")]
    skipped: Annotated[list[str], documented("variables that did not, at most 100")]


class SessionBranched(Event, frozen=True, kw_only=True, rename="kebab", tag="session/branched"):
    """The session was created as a copy of another session at a checkpoint."""

    source: Annotated[str, documented("id of the copied session")]
    checkpoint: Annotated[int, documented("number of the source's checkpoint")]
    evals: Annotated[list[int], documented("evals of the source that the copy contains")]
