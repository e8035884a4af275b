"""Operations on evals."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from replwire.identifiers import MAX_NAME_BYTES
from replwire.ops.base import (
    ApprovalId,
    Instance,
    Natural,
    OpensSession,
    Positive,
    QueuedRequest,
    Request,
    SessionRequest,
    TraceParent,
)

_OF_AN_EVAL = (
    "out",
    "err",
    "value",
    "ns",
    "mime",
    "images-dropped",
    "repr-error",
    "ex",
    "stacktrace",
    "traceback",
    "eval-id",
    "epoch",
    "state",
    "changed",
    "duration-ms",
    "ephemeral",
    "created",
    "session",
    "name",
    "cwd",
    "truncated",
    "dropped-bytes",
    "background-bytes",
    "max-eval-time-ms",
    "queue-position",
    "offset",
    "cause",
    "hint",
    "notice",
    "approval",
)


IdempotencyKeyText = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]


class Eval(OpensSession, frozen=True, kw_only=True, rename="kebab"):
    """Run code in a session, or in an ephemeral one if no session is named.

    `timeout-ms` limits the run time, `wait-ms` how long the reply is awaited; after that the code continues, and can be
    read by its `eval-id`. `module` names an imported module to run it in. `mime` lists the rich formats that the caller
    can display, best first. `approval` is the id of an `approval-needed` that a person has granted, `traceparent` the
    caller's span, if the broker exports traces.
    """

    returns: ClassVar[tuple[str, ...]] = _OF_AN_EVAL

    changes: ClassVar[bool] = True
    long: ClassVar[bool] = False

    code: str | None = None
    timeout_ms: Positive | None = None
    wait_ms: Natural | None = None
    module: str | None = None
    silent: bool = False
    allow_stdin: bool = True
    store_history: bool = True
    if_missing: Literal["error", "create"] = "error"
    expect_epoch: Natural | None = None
    idempotency_key: IdempotencyKeyText | None = None
    mime: list[str] = []
    approval: ApprovalId | None = None
    traceparent: TraceParent | None = None

    def summary(self) -> str:
        """Return the code, for listings and history."""
        return self.code or ""

    @property
    def in_history(self) -> bool:
        """True if the session's history records the eval."""
        return self.store_history


class LoadFile(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Run a file on the broker's machine, below one of the directories of `session.load-paths`.

    By default there are none. Tracebacks name the file.
    """

    returns: ClassVar[tuple[str, ...]] = _OF_AN_EVAL

    file: str
    silent: bool = False

    def summary(self) -> str:
        return f"{self.op} {self.file}"


class ReloadFile(LoadFile, frozen=True, kw_only=True, rename="kebab"):
    """Forget the names that the file defined before, then run it again; an imported module is reloaded instead."""

    returns: ClassVar[tuple[str, ...]] = _OF_AN_EVAL

    session: str


class Read(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Read an eval's output and result from an offset, waiting up to `wait-ms` for its end.

    `eval-id` 0 is the background output that the session printed between evals.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = (
        *(key for key in _OF_AN_EVAL if key not in ("created", "approval")),
        "undone",
    )

    eval_id: Natural
    offset: Natural = 0
    stream: Literal["out", "err", "both"] = "both"
    wait_ms: Natural = 0
    max_bytes: Positive | None = None
    grep: Annotated[str, Meta(max_length=1000)] | None = None


class Interrupt(Request, frozen=True, kw_only=True, rename="kebab"):
    """Interrupt the session's running eval, or the running or queued eval named by `interrupt-id`.

    `all` also empties the queue. `request-id` names an eval that this connection sent, in any session. It is not an
    error if there is nothing to interrupt.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("interrupted", "interrupted-id")

    interrupt_id: Natural | None = None
    request_id: str | None = None
    all: bool = False


class Stdin(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Send input to the session: to the running eval, or buffered for the next one that reads."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("delivered", "buffered")

    input: str


class Jobs(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """List the session's queued, running and recent evals."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("jobs", "session", "name")


class FindEval(Request, frozen=True, kw_only=True, rename="kebab"):
    """Report whether the eval with an idempotency key of this identity and agent has run, without running it.

    `instance` is the broker that it was sent to, `age-ms` how long ago that was. `outcome` is `ran` if it has begun or
    waits for its turn, `did-not-run` if this broker knows of every eval that the key can stand for, else `unknown`.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("outcome", "session", "name", "jobs")

    idempotency_key: IdempotencyKeyText
    instance: Instance | None = None
    age_ms: Natural | None = None


class History(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """List the code that the session has run, oldest first, across resets.

    `limit` returns the last evals only, `grep` only those with this text in their code.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("history", "count", "session", "name")

    limit: Positive | None = None
    grep: Annotated[str, Meta(max_length=1000)] | None = None


class Stack(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Show the session's current stack, thread by thread, and its processes, without stopping it."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("threads", "processes")
