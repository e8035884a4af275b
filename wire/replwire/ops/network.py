"""Operations on the network of a session."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.ops.base import ApprovalId, Positive, SessionRequest

_Entry = Annotated[str, Meta(min_length=1, max_length=300)]


class AllowHosts(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Let a session with a list of hosts reach more of them for a time, as far as `sandbox.more-hosts` permits.

    `hosts` are entries as in `sandbox.allowed-hosts`; none: end at once what was allowed so. `for-ms` is at most
    `max-host-time-ms`, which is the default. `approval` is the id of an `approval-needed` that a person has granted.
    Applies at once, also to a running eval, and stays through a reset. Hosts in `denied-hosts` stay refused.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("session", "name", "more-hosts", "approval", "notice")

    hosts: Annotated[list[_Entry], Meta(max_length=100)] = []
    for_ms: Positive | None = None
    approval: ApprovalId | None = None

    def summary(self) -> str:
        """Return a one-line summary for the person who decides."""
        limit = "" if self.for_ms is None else f" for {self.for_ms / 1000:g} s"
        return f"allow-hosts {' '.join(self.hosts)}{limit}"
