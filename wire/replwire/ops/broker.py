"""Operations on the broker."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.ops.base import Request


class Describe(Request, frozen=True, kw_only=True, rename="kebab"):
    """Describe the broker: operations, runtimes, limits, versions."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = (
        "ops",
        "identity",
        "acts-as",
        "runtimes",
        "sandbox",
        "limits",
        "versions",
        "instance",
        "encodings-available",
        "encoding-current",
    )


class Hello(Request, frozen=True, kw_only=True, rename="kebab"):
    """Authenticate with a token issued by the broker's operator, for line clients without other authentication."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("identity",)

    token: Annotated[str, Meta(max_length=1000)]


class Ping(Request, frozen=True, kw_only=True, rename="kebab"):
    """Check that the broker is reachable."""

    changes: ClassVar[bool] = False


class Stats(Request, frozen=True, kw_only=True, rename="kebab"):
    """Return counters, queue, worker pool and agents of the broker."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("stats",)


class ReloadConfig(Request, frozen=True, kw_only=True, rename="kebab"):
    """Reload the config file.

    Settings that can change at run time take effect, the others are listed. An invalid file changes nothing. For the
    broker's own user, root and admins.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("reloaded", "needs-restart")


class Shutdown(Request, frozen=True, kw_only=True, rename="kebab"):
    """Shut the broker down: no new evals, running ones get the close grace, then every session is closed.

    With `keep-sessions` it ends at once, sessions and their evals go on, and the next broker at the endpoint has them.
    With `restart` the broker's process begins again as that broker, with the same arguments.
    """

    changes: ClassVar[bool] = True

    keep_sessions: bool = False
    restart: bool = False
