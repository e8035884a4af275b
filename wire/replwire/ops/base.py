"""Base classes of all operations.

The struct is the contract: `describe`, the docs table and the tool schemas are derived from it. The docstring is the
operation's description, a field without a default is required, `returns` lists the fields of the reply, and `changes`
says whether the operation can change anything, and so is refused in plan mode.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from replwire.policy import SandboxOverrides

# Keys that any reply may have in addition to `id`, `status` and the contract's `returns`.
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
    "checkpoint",
    "undone-evals",
    "not-restored",
    "eval-id",
    "queue-position",
    "ephemeral",
    "entered-at",
    "entered-reason",
    "broker-version",
    "instance",
)

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
ApprovalId = Annotated[str, Meta(min_length=1, max_length=256)]  # granted by a person
Part = bytes  # base64 on the wire, at most `max-part-bytes`
Project = Annotated[str, Meta(max_length=4096, pattern=r"\A/[^\x00]*\Z")]  # an absolute path, up to Linux's PATH_MAX
Version = Annotated[str, Meta(max_length=64)]
Instance = Annotated[str, Meta(max_length=64)]
TraceParent = Annotated[str, Meta(max_length=256)]  # W3C Trace Context; an invalid one starts a new trace


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Fields common to all requests.

    `agent` and `binding` are labels for the agent and the interface it uses; fair scheduling, the rules of `[[agents]]`
    and listings use them. `mode` `plan` rejects every change. `session` is the name of an own session, an id, or
    `OWNER/NAME`; `project` is the directory whose `default` session that name means. `client-version` is sent in the
    first request of a connection, so that a broker of another version can report the difference; likewise
    `known-instance`, the `instance` of the broker that the client had before, or an empty text.
    """

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
    known_instance: Instance | None = None

    @property
    def mutates(self) -> bool:
        """True if this request can change anything."""
        return self.changes

    @property
    def target(self) -> str | None:
        """Reference of the session the request is about, used for access checks."""
        return self.session


class OpensSession(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that may open a session.

    `cwd` is its working directory; with `cwd-needed` false the session is opened without one if it is not available,
    and the reply says so. `profile`, `network` and the limits below make its sandbox tighter than the broker's, never
    looser. With `checkpoint-files` its checkpoints keep the files of its directory too.
    """

    runtime: str | None = None
    cwd: str | None = None
    cwd_needed: bool = True
    env: list[str] = []
    checkpoint_files: bool | None = None
    profile: Literal["read-only", "workspace-write"] | None = None
    network: Literal["none", "list", "host"] | None = None
    allowed_hosts: list[str] | None = None
    denied_hosts: list[str] | None = None
    memory_bytes: Positive | None = None
    pids: Positive | None = None
    cpu_percent: Positive | None = None

    def sandbox_overrides(self) -> SandboxOverrides | None:
        """Return the sandbox overrides of the request, or None."""
        asked = (self.profile, self.network, self.memory_bytes, self.pids, self.cpu_percent)
        if (*asked, self.allowed_hosts, self.denied_hosts) == (None,) * 7:
            return None
        return SandboxOverrides(
            profile=self.profile,
            network=self.network,
            allowed_hosts=self.allowed_hosts,
            denied_hosts=self.denied_hosts,
            memory_bytes=self.memory_bytes,
            pids=self.pids,
            cpu_percent=self.cpu_percent,
        )


class SessionRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that requires a session."""

    session: str


class QueuedRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that is queued in the session like an eval.

    `timeout-ms` limits its run time, `wait-ms` how long the reply is awaited; after that it continues, and can be read
    by its `eval-id`. `traceparent` is the caller's span, if the broker exports traces.
    """

    changes: ClassVar[bool] = True
    long: ClassVar[bool] = False  # limited by `max-job-time-ms`, like an eval with `wait-ms`

    timeout_ms: Positive | None = None
    wait_ms: Natural | None = None
    approval: ApprovalId | None = None
    traceparent: TraceParent | None = None

    def summary(self) -> str:
        """Return a one-line summary for listings and history."""
        return self.op

    @property
    def in_history(self) -> bool:
        """True if the session's history records the request."""
        return False
