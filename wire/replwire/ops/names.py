"""Operations on names. They run no user code; while an eval runs, they return `busy`."""

from __future__ import annotations

from typing import ClassVar

from replwire.ops.base import Positive, Request, SessionRequest


class Complete(Request, frozen=True, kw_only=True, rename="kebab"):
    """List completions for `code` at `pos`, an offset in bytes of UTF-8.

    An offset out of range has none. Without a session, in an ephemeral one.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("completions", "start")

    code: str
    pos: int
    limit: Positive = 200
    runtime: str | None = None


class Lookup(Request, frozen=True, kw_only=True, rename="kebab"):
    """Look up a dotted name: type, documentation, signature, location. Anything but a name is not found."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("found", "name", "type", "doc", "signature", "methods", "file", "line")

    symbol: str
    module: str | None = None
    runtime: str | None = None


class LsBindings(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """List names bound by the session's code, sorted, without imports and names with a leading underscore."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("bindings", "count", "ns")


class ClearBindings(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Delete every name bound by the session's code; the process stays."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("count",)
