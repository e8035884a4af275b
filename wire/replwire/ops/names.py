"""Asking a session about names. Nothing of the user's is run to answer; a session that runs an eval is `busy`."""

from __future__ import annotations

from typing import ClassVar

from replwire.ops.base import Positive, Request, SessionRequest


class Complete(Request, frozen=True, kw_only=True, rename="kebab"):
    """Ways to go on with `code` at `pos`, an offset in bytes of UTF-8; one that is out of range has none. Without
    a session: in a throw-away one."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("completions", "start")

    code: str
    pos: int
    limit: Positive = 200
    runtime: str | None = None


class Lookup(Request, frozen=True, kw_only=True, rename="kebab"):
    """What a dotted name means: type, text, signature, place. Anything but a name is not found."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("found", "name", "type", "doc", "signature", "methods", "file", "line")

    symbol: str
    module: str | None = None
    runtime: str | None = None


class LsBindings(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Names that the session's code bound, sorted; imports and names with a leading underscore left out."""

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("bindings", "count", "ns")


class ClearBindings(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Forget every name the session's code bound; the process stays."""

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("count",)
