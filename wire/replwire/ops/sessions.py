"""Operations on sessions and environments."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta

from replwire.ops.base import OpensSession, QueuedRequest, Request, SessionRequest
from replwire.ops.snapshots import SnapshotId


class NewSession(OpensSession, frozen=True, kw_only=True, rename="kebab"):
    """Open a session, with or without a name.

    `runtime` is `python`, `node`, `bash`, or a Python environment: the path of a virtual environment, an interpreter,
    or a project with a `.venv`, or `@NAME` for one in the broker's state directory. With `snapshot`, the id of one sent
    with `put-snapshot`, it begins with these variables, in the runtime that saved them; `skipped` lists what was
    not saved or cannot be restored, with the reason.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = (
        "session",
        "name",
        "cwd",
        "epoch",
        "created",
        "state",
        "cause",
        "trusted",
        "count",
        "bytes",
        "skipped",
        "notice",
    )

    name: str | None = None
    if_exists: Literal["error", "reuse"] = "error"
    snapshot: SnapshotId | None = None
    trusted: bool = False


class LsSessions(Request, frozen=True, kw_only=True, rename="kebab"):
    """List the sessions."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("sessions",)


class Info(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Show session details: runtime, working directory, process, memory, variables, limits."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("info",)

    variables: bool = True


class SetMode(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Put a session into plan mode, in which every change is refused, or back to `normal`."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("session", "name", "session-mode")

    to: Literal["plan", "normal"]
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class Share(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Share a session for reading (`read`) or use (`write`) with the identity `who`, or with everybody (`*`).

    `none` revokes it. For the owner and admins.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("session", "name", "shares")

    who: Annotated[str, Meta(min_length=1, max_length=256)] = "*"
    level: Literal["none", "read", "write"]


class Transfer(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Transfer a session to another identity: the owner offers it, and that identity accepts with the same operation.

    Fails with `session-already-exists` if the new owner has a session of this name. Admins transfer without an offer.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("session", "name", "owner", "offered-to", "notice")

    who: Annotated[str, Meta(min_length=1, max_length=256)]


PackageAction = Literal["add", "rm", "update", "status", "instantiate", "resolve", "test"]
PACKAGE_ACTIONS: tuple[str, ...] = get_args(PackageAction)


class Env(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Manage the environment and packages of a session.

    `show` its Python environment; `activate` the one at `path` (see `new-session`) or `deactivate` it: the session gets
    a new worker, and if that fails nothing changes. The other actions are queued like an eval, with live output:
    `add`, `rm` and `update` packages, show their `status`, `instantiate` those of a lock or project file at `path`,
    `resolve` them without installing, or run the project's `test`s.
    """

    returns: ClassVar[tuple[str, ...]] = (
        "environment",
        "executable",
        "approval",
        "session",
        "name",
        "epoch",
        "state",
        "out",
        "err",
        "eval-id",
        "duration-ms",
        "ephemeral",
        "truncated",
        "dropped-bytes",
        "background-bytes",
        "max-eval-time-ms",
        "queue-position",
        "changed",
        "cause",
        "hint",
        "notice",
    )

    long: ClassVar[bool] = True

    session: str
    action: Literal["show", "activate", "deactivate"] | PackageAction
    path: Annotated[str, Meta(max_length=4096)] | None = None
    packages: Annotated[list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=100)] = []

    @property
    def mutates(self) -> bool:
        return self.action not in ("show", "status", "resolve")

    def summary(self) -> str:
        return " ".join(["env", self.action, *self.packages])


class LsEnvironments(Request, frozen=True, kw_only=True, rename="kebab"):
    """List named environments of the broker: your own, for admins everybody's."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("environments",)


class RemoveEnvironment(Request, frozen=True, kw_only=True, rename="kebab"):
    """Delete your named environment `@NAME` and its packages; admins also `@OWNER/NAME`.

    Fails with `environment-in-use` while a session uses it.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("environment",)

    environment: Annotated[str, Meta(max_length=600, pattern=r"\A@")]


class Clone(QueuedRequest, frozen=True, kw_only=True, rename="kebab"):
    """Open a session `name` with copies of all variables of `session` (or `source`).

    The reply lists what cannot be copied, with the reason. Waits for the running eval of the source.
    """

    returns: ClassVar[tuple[str, ...]] = (
        "new-session",
        "session",
        "name",
        "epoch",
        "cwd",
        "created",
        "state",
        "trusted",
        "eval-id",
        "queue-position",
        "count",
        "bytes",
        "skipped",
        "notice",
        "out",
        "duration-ms",
        "max-eval-time-ms",
    )

    long: ClassVar[bool] = True

    name: str
    source: str | None = None
    type: Literal["light", "heavy"] = "light"

    @property
    def target(self) -> str | None:
        return self.session or self.source

    def summary(self) -> str:
        return f"clone to {self.name}"


class Reset(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Kill the session's worker and start a new one. Name, id, runtime, directory and environment stay."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("session", "name", "epoch", "state", "notice")


class Close(Request, frozen=True, kw_only=True, rename="kebab"):
    """Close a session: its running eval ends `interrupted`, its processes are killed, its name is free.

    `name` is a former alias of `session`.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("session", "name")

    name: str | None = None

    @property
    def target(self) -> str | None:
        return self.session or self.name


class CloneSession(Clone, frozen=True, kw_only=True, rename="kebab"):
    """Former name of `clone`; the source is `source` only."""

    returns: ClassVar[tuple[str, ...]] = tuple(key for key in Clone.returns if key != "new-session")

    source: str

    @property
    def target(self) -> str:
        return self.source


class CloseSession(Close, frozen=True, kw_only=True, rename="kebab"):
    """Former name of `close`; the session is `name` only."""

    returns: ClassVar[tuple[str, ...]] = ("session", "name")

    name: str

    @property
    def target(self) -> str:
        return self.name
