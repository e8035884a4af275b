"""Requests for operations that extensions contribute."""

from __future__ import annotations

from typing import ClassVar

from replwire.ops.base import Request


class ExtensionRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request for an operation of an extension, whose fields the extension declares.

    `is_change` says whether the operation can change anything; the broker sets it, whatever the request says.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("out", "result")

    is_change: bool = True

    @property
    def mutates(self) -> bool:
        return self.is_change
