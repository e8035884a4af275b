"""Named environments: whose they are, and how many there may be.

`@NAME` is a name of the asker's own. Of the broker's own user it is written so everywhere; of everybody else as
`@OWNER/NAME`, in sessions, specs and on the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from replbroker.core.effects import Peer
from replbroker.core.sessions.session import Session
from replwire.deadlines import Deadline
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.limits import Limits


@dataclass
class EnvironmentRemoval:
    """An environment on its way off the disk; `peer` is None once nobody waits for that."""

    peer: Peer | None
    request_id: str
    deadline: Deadline | None = None


def named_environments(sessions: Iterable[Session]) -> dict[str, list[Session]]:
    """The named environments of sessions, each with those that have it or are to move there."""
    found: defaultdict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        for environment in {spec.environment for spec in session.specs()}:
            if environment is not None and environment.startswith("@"):
                found[environment].append(session)
    return dict(found)


class NamedEnvironments:
    """`own` is the broker's user; `kept` tells which are on the disk."""

    def __init__(self, own: str, kept: Callable[[], frozenset[str]]) -> None:
        self._broker_user = own
        self._list_installed = kept
        self.removing: dict[str, EnvironmentRemoval] = {}

    def qualify(self, asked: str, identity: str) -> str:
        """The environment that `@NAME`, or `@OWNER/NAME`, of this identity is. Raises Refusal."""
        owner, environment = self._parse(asked, identity)
        if owner != identity:
            raise RequestError("forbidden", f"environment {asked} belongs to somebody else")
        self._check_staying(environment)
        return environment

    def qualify_for_removal(self, asked: str, identity: str, used: Collection[str], *, is_admin: bool) -> str:
        """The same of one that is there and that this identity may remove. Raises Refusal."""
        owner, environment = self._parse(asked, identity)
        if (owner != identity and not is_admin) or environment not in self.all_names(used):
            raise RequestError("environment-not-found", f"Environment not found: {asked}")
        self._check_staying(environment)
        return environment

    def all_names(self, used: Iterable[str]) -> frozenset[str]:
        """Those on the disk, and those that sessions have, which may be made just now."""
        return self._list_installed() | set(used)

    def owner_of(self, environment: str) -> str:
        """Whose it is."""
        return environment[1:].rpartition("/")[0] or self._broker_user

    def detach_peer(self, peer: Peer) -> None:
        """Nobody is there to be told that an environment was removed."""
        for removal in self.removing.values():
            if removal.peer == peer:
                removal.peer = None

    def _check_staying(self, environment: str) -> None:
        if environment in self.removing:
            raise RequestError("busy", f"environment {environment} is being removed")

    def _parse(self, asked: str, identity: str) -> tuple[str, str]:
        """Owner and environment. Raises Refusal."""
        owner, slash, name = asked[1:].rpartition("/")
        why = name_error("environment", name)
        if why is None and slash:
            why = name_error("environment owner", owner.replace(":", "-"))
        if why is not None:
            raise RequestError("invalid-request", why)
        owner = owner if slash else identity
        return owner, f"@{name}" if owner == self._broker_user else f"@{owner}/{name}"

    def check_room(self, environment: str, used: Iterable[str], limits: Limits) -> None:
        """Whether one that may be new may be made; `used` are those of sessions. Raises Refusal."""
        known = self.all_names(used)
        if environment in known:
            return
        mine = sum(each.rpartition("/")[0] == environment.rpartition("/")[0] for each in known)
        for limit, count, most in (
            ("max-identity-environments", mine, limits.max_identity_environments),
            ("max-environments", len(known), limits.max_environments),
        ):
            if count >= most:
                hint = "name one that there is, or a virtual environment by its path; `remove-environment` makes room"
                raise RequestError(
                    "environment-limit-reached",
                    f"{count} named environments are kept already ({limit} = {most})",
                    limit=limit,
                    limit_value=most,
                    hint=hint,
                )
