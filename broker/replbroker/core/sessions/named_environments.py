"""Named environments: their owners, and how many there may be.

`@NAME` is a name of the client's own. Everywhere else, in sessions, specs and on the disk, it is written as
`@OWNER/NAME`, and as `@NAME` for the broker's own user alone.
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
    """An environment that is being removed from the disk; `peer` is None once no client waits for that."""

    peer: Peer | None
    request_id: str
    deadline: Deadline | None = None


def named_environments(sessions: Iterable[Session]) -> dict[str, list[Session]]:
    """Return the named environments of sessions, each with the sessions that have it or are about to."""
    found: defaultdict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        for environment in {spec.environment for spec in session.specs()}:
            if environment is not None and environment.startswith("@"):
                found[environment].append(session)
    return dict(found)


class NamedEnvironments:
    """The names of environments, and the removals in progress."""

    def __init__(self, broker_user: str, list_installed: Callable[[], frozenset[str]]) -> None:
        """Create the names.

        Args:
            broker_user: The identity of the broker's own user.
            list_installed: Returns the environments on the disk.
        """
        self._broker_user = broker_user
        self._list_installed = list_installed
        self.removing: dict[str, EnvironmentRemoval] = {}

    def qualify(self, asked: str, identity: str) -> str:
        """Return the environment that `@NAME`, or `@OWNER/NAME`, of this identity is. Raises RequestError."""
        owner, environment = self._parse(asked, identity)
        if owner != identity:
            raise RequestError("forbidden", f"environment {asked} belongs to another user")
        self._check_staying(environment)
        return environment

    def qualify_for_removal(self, asked: str, identity: str, used: Collection[str], *, is_admin: bool) -> str:
        """Return the environment to remove.

        Args:
            asked: `@NAME` or `@OWNER/NAME`.
            identity: The client's identity.
            used: The environments that sessions have.
            is_admin: The client may remove those of others.

        Raises:
            RequestError: There is none that this client may remove.
        """
        owner, environment = self._parse(asked, identity)
        if (owner != identity and not is_admin) or environment not in self.all_names(used):
            raise RequestError("environment-not-found", f"Environment not found: {asked}")
        self._check_staying(environment)
        return environment

    def all_names(self, used: Iterable[str]) -> frozenset[str]:
        """Return the environments on the disk, and those that sessions have, which may be in the making."""
        return self._list_installed() | set(used)

    def owner_of(self, environment: str) -> str:
        """Return the identity that an environment belongs to."""
        return environment[1:].rpartition("/")[0] or self._broker_user

    def detach_peer(self, peer: Peer) -> None:
        """Let removals go on without a client that has left."""
        for removal in self.removing.values():
            if removal.peer == peer:
                removal.peer = None

    def _check_staying(self, environment: str) -> None:
        if environment in self.removing:
            raise RequestError("busy", f"environment {environment} is being removed")

    def _parse(self, asked: str, identity: str) -> tuple[str, str]:
        """Return owner and environment. Raises RequestError."""
        owner, slash, name = asked[1:].rpartition("/")
        why = name_error("environment", name)
        if why is None and slash:
            why = name_error("environment owner", owner.replace(":", "-"))
        if why is not None:
            raise RequestError("invalid-request", why)
        owner = owner if slash else identity
        return owner, f"@{name}" if owner == self._broker_user else f"@{owner}/{name}"

    def check_room(self, environment: str, used: Iterable[str], limits: Limits) -> None:
        """Raise RequestError when an environment would be one too many.

        Args:
            environment: The environment, which may exist.
            used: The environments that sessions have.
            limits: The limits of the broker.
        """
        known = self.all_names(used)
        if environment in known:
            return
        mine = sum(each.rpartition("/")[0] == environment.rpartition("/")[0] for each in known)
        for limit, count, most in (
            ("max-identity-environments", mine, limits.max_identity_environments),
            ("max-environments", len(known), limits.max_environments),
        ):
            if count >= most:
                hint = "use one that exists, or a virtual environment by its path; `remove-environment` makes room"
                raise RequestError(
                    "environment-limit-reached",
                    f"{count} named environments are kept already ({limit} = {most})",
                    limit=limit,
                    limit_value=most,
                    hint=hint,
                )
