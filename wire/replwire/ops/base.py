"""What all operations have in common.

The struct is the contract: `describe`, the docs table and the tool schemas are derived from it. Its docstring is
the operation's text, a field without a default is required, `returns` names what comes back, and `changes` says
whether it can change anything: such an operation is refused in plan mode.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from replwire.policy import SandboxOverrides

# Keys that an answer to any operation may have beside `id`, `status` and what its contract `returns`.
OF_ANY_ANSWER = (
    "err",
    "hint",
    "cause",
    "limit",
    "limit-value",
    "quota-of",
    "retry-after-ms",
    "correlation-id",
    "ignored-fields",
    "notice",
    "epoch",
    "state",
    "eval-id",
    "queue-position",
    "ephemeral",
    "entered-at",
    "entered-reason",
    "broker-version",
)

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
ApprovalId = Annotated[str, Meta(min_length=1, max_length=256)]  # of what a person has said yes to
Project = Annotated[str, Meta(max_length=4096, pattern=r"\A/[^\x00]*\Z")]  # an absolute path, as long as Linux has them
Version = Annotated[str, Meta(max_length=64)]
TraceParent = Annotated[str, Meta(max_length=256)]  # W3C Trace Context; one that cannot be read begins a new trace


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What every request has. `agent` says for whom it is, `binding` through which of the agent's doors; both are
    labels for fairness, for the rules of `[[agents]]` and for people. `mode` `plan` refuses what changes anything.
    `session` is a name of the asker's own, an id, or `OWNER/NAME`; `project` is the directory whose `default` session
    that name means. `client-version` stands in the first request of a connection: a broker of another one says so."""

    returns: ClassVar[tuple[str, ...]] = ()
    changes: ClassVar[bool]

    id: str
    op: str
    session: str | None = None
    project: Project | None = None
    agent: str | None = None
    binding: str | None = None
    mode: Literal["plan", "normal"] | None = None
    client_version: Version | None = None

    @property
    def mutates(self) -> bool:
        """Whether this very request can change anything."""
        return self.changes

    @property
    def target(self) -> str | None:
        """The session that it is about, by reference: what the broker checks rights on."""
        return self.session


class OpensSession(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that may open a session. `cwd` is its folder; with `cwd-needed` false it does without one that it
    cannot have, and says so. `profile`, `network` and the limits below make its sandbox tighter than the broker's,
    never looser."""

    runtime: str | None = None
    cwd: str | None = None
    cwd_needed: bool = True
    env: list[str] = []
    profile: Literal["read-only", "workspace-write"] | None = None
    network: Literal["none", "host"] | None = None
    memory_bytes: Positive | None = None
    pids: Positive | None = None
    cpu_percent: Positive | None = None

    def sandbox_overrides(self) -> SandboxOverrides | None:
        """What it asks of the sandbox, or None for nothing."""
        asked = (self.profile, self.network, self.memory_bytes, self.pids, self.cpu_percent)
        if asked == (None,) * 5:
            return None
        return SandboxOverrides(
            profile=self.profile,
            network=self.network,
            memory_bytes=self.memory_bytes,
            pids=self.pids,
            cpu_percent=self.cpu_percent,
        )


class SessionRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that needs a session."""

    session: str


class QueuedRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that takes its turn in the session, as an eval does. `timeout-ms` bounds how long it may run,
    `wait-ms` how long its answer is awaited: after that it goes on, and can be read by its `eval-id`. `traceparent` is
    the caller's span, where the broker makes traces."""

    changes: ClassVar[bool] = True
    long: ClassVar[bool] = False  # what bounds its time is `max-job-time-ms`, as for an eval with `wait-ms`

    timeout_ms: Positive | None = None
    wait_ms: Natural | None = None
    approval: ApprovalId | None = None
    traceparent: TraceParent | None = None

    def summary(self) -> str:
        """What is run, for lists and histories."""
        return self.op

    @property
    def in_history(self) -> bool:
        """Whether the session's history keeps it."""
        return False
