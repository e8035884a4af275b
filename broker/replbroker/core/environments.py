"""Named environments: whose they are, and how many there may be.

`@NAME` is a name of the asker's own. Of the broker's own user it is written so everywhere; of everybody else as
`@OWNER/NAME`, in sessions, specs and on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replwire.faults import Refusal
from replwire.limits import Limits
from replwire.names import name_error


class Environments:
    """`own` is the broker's user; `kept` tells which are on the disk."""

    def __init__(self, own: str, kept: Callable[[], frozenset[str]]) -> None:
        self._own = own
        self._kept = kept

    def qualified(self, asked: str, identity: str) -> str:
        """The environment that `@NAME`, or `@OWNER/NAME`, of this identity is. Raises Refusal."""
        owner, slash, name = asked[1:].rpartition("/")
        why = name_error("environment", name)
        if why is None and slash:
            why = name_error("environment owner", owner.replace(":", "-"))
        if why is not None:
            raise Refusal("invalid-request", why)
        if slash and owner != identity:
            raise Refusal("forbidden", f"environment {asked} belongs to somebody else")
        return f"@{name}" if identity == self._own else f"@{identity}/{name}"

    def check_room(self, environment: str, used: Iterable[str], limits: Limits) -> None:
        """Whether one that may be new may be made; `used` are those of sessions. Raises Refusal."""
        known = self._kept() | set(used)
        if environment in known:
            return
        mine = sum(each.rpartition("/")[0] == environment.rpartition("/")[0] for each in known)
        for limit, count, most in (
            ("max-identity-environments", mine, limits.max_identity_environments),
            ("max-environments", len(known), limits.max_environments),
        ):
            if count >= most:
                hint = "name one that there is, or a virtual environment by its path"
                raise Refusal(
                    "environment-limit-reached", f"{count} named environments are kept already ({limit} = {most})",
                    limit=limit, limit_value=most, hint=hint,
                )  # fmt: skip
