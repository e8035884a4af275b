"""The broker itself."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.ops.base import Request


class Describe(Request, frozen=True, kw_only=True, rename="kebab"):
    """What this broker can do: operations, runtimes, limits, versions."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = (
        "ops",
        "identity",
        "acts-as",
        "runtimes",
        "sandbox",
        "limits",
        "versions",
        "encodings-available",
        "encoding-current",
    )


class Hello(Request, frozen=True, kw_only=True, rename="kebab"):
    """Say who one is, with a token that the broker's operator gave out. For line clients whom nobody else vouches
    for."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("identity",)

    token: Annotated[str, Meta(max_length=1000)]


class Ping(Request, frozen=True, kw_only=True, rename="kebab"):
    """Is anybody there?"""

    changes: ClassVar[bool] = False


class Stats(Request, frozen=True, kw_only=True, rename="kebab"):
    """Counters, queue, pool and agents of the broker."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("stats",)


class ReloadConfig(Request, frozen=True, kw_only=True, rename="kebab"):
    """Read the config file again. Settings that can change in a broker that runs do, the others are named; a file that
    cannot be used changes nothing. For the broker's own user, root and admins."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("reloaded", "needs-restart")


class Shutdown(Request, frozen=True, kw_only=True, rename="kebab"):
    """End the broker: no new evals, running ones get the close grace, then every session is closed."""

    changes: ClassVar[bool] = True
