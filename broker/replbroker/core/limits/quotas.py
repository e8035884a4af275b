"""Quotas: how much of each shared total an identity may hold, and each of its agents.

Of every total a reserve is for the broker's own user, root and admins. Everybody else may hold a share of it, and while
several do, one that has more than an equal part leaves the last of it to the others. Labels of agents divide what their
identity may hold by the same rule; a new label never adds to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from replwire.faults import RequestError
from replwire.limits import Limits


class Holder(NamedTuple):
    """An account to charge. `agent` is a label, or stands for one connection."""

    identity: str
    agent: str = ""


class Resource(NamedTuple):
    """A counted resource. `quota` and `total` are names of limits, `word` and `err` those of an error."""

    quota: str  # the limit of one identity
    total: str  # the limit of all together
    code: str
    err: str
    divided: bool = True  # agents of one identity divide it; else it goes round, or the oldest is dropped


CONNECTIONS: Final = Resource("max-connections", "max-connections", "connection-limit-reached", "Too many clients")
SESSIONS: Final = Resource("max-sessions", "max-sessions", "session-limit-reached", "Session limit reached")
SLOTS: Final = Resource(
    "max-concurrent-evals", "max-concurrent-evals", "concurrency-limit-reached", "Too many concurrent evals", False
)
QUEUE: Final = Resource(
    "max-queued-evals", "max-queued-total", "concurrency-limit-reached", "Too many concurrent evals"
)
READS: Final = Resource(
    "max-waiting-reads-total", "max-waiting-reads-total", "concurrency-limit-reached", "Too many requests wait"
)
SUBSCRIPTIONS: Final = Resource(
    "max-subscriptions-total", "max-subscriptions-total", "concurrency-limit-reached", "Too many subscriptions"
)
IDEMPOTENCY_KEYS: Final = Resource(
    "max-idempotency-keys", "max-idempotency-keys", "rate-limited", "Too many keys", False
)
OPERATIONS: Final = Resource(
    "max-operations", "max-operations", "concurrency-limit-reached", "Too many operations of extensions"
)
RESOURCES: Final = (CONNECTIONS, SESSIONS, SLOTS, QUEUE, READS, SUBSCRIPTIONS, OPERATIONS, IDEMPOTENCY_KEYS)
_LIMITS = {name for each in RESOURCES for name in (each.quota, each.total)}


class _QuotaExceeded(NamedTuple):
    """The limit that was met, its value, and whose it is (None: of all together)."""

    limit: str
    value: int
    holder: str | None


class _ResourceUsage:
    """Counts of one resource."""

    __slots__ = ("by_holder", "by_identity", "labels", "total", "unprivileged", "users")

    def __init__(self) -> None:
        self.total = 0
        self.unprivileged = 0  # of the total, without the broker's own user and admins
        self.users = 0  # identities that hold that
        self.by_holder: dict[Holder, int] = {}
        self.by_identity: dict[str, int] = {}
        self.labels: dict[str, int] = {}  # agents that hold some, by identity


class Quotas:
    """Counts and limits of every resource. Every charge is released by whoever made it, on the same holder."""

    def __init__(self, limits: Limits, listed: Mapping[str, Mapping[str, int]], privileged: Collection[str]) -> None:
        """Create the counts.

        Args:
            limits: The limits of the broker.
            listed: Quotas that the config gives to identities, by the names of limits.
            privileged: The broker's own user, root and admins, for whom the reserve is.
        """
        self._usage = {resource: _ResourceUsage() for resource in RESOURCES}
        self.configure(limits, listed, privileged)

    def configure(self, limits: Limits, listed: Mapping[str, Mapping[str, int]], privileged: Collection[str]) -> None:
        """Apply other limits, quotas and admins; see `__init__`. What is held stays held."""
        self._limits = limits
        self._values: dict[str, int] = {name: getattr(limits, name.replace("-", "_")) for name in _LIMITS}
        self._listed = listed
        self._privileged = frozenset(privileged)
        for usage in self._usage.values():
            users = {who: count for who, count in usage.by_identity.items() if who not in self._privileged}
            usage.unprivileged, usage.users = sum(users.values()), len(users)

    # --- limits ---

    def _reserve(self, total: int) -> int:
        """Return the reserved part of a total: all but one at most, so that a small total has room for anybody."""
        return max(0, min(total - 1, -(-total * self._limits.reserve_percent // 100)))

    def quota(self, resource: Resource, identity: str) -> int:
        """Return the most that one identity may hold."""
        listed = self._listed.get(identity, {}).get(resource.quota)
        total = self._values[resource.total]
        if listed is not None:
            return min(listed, total)
        if identity in self._privileged:
            return total
        most = total - self._reserve(total)
        if resource.quota != resource.total:
            return min(most, self._values[resource.quota])
        return min(most, -(-total * self._limits.identity_share_percent // 100))

    def _find_exceeded(self, resource: Resource, holder: Holder) -> _QuotaExceeded | None:
        """Return the limit that one more for this holder would exceed."""
        usage, identity, total = self._usage[resource], holder.identity, self._values[resource.total]
        if usage.total >= total:
            return _QuotaExceeded(resource.total, total, None)
        quota, mine = self.quota(resource, identity), usage.by_identity.get(identity, 0)
        if mine >= quota:
            return _QuotaExceeded(resource.quota, quota, identity)
        if identity not in self._privileged:
            kept = self._reserve(total)
            most = total - kept
            if usage.unprivileged >= most:
                return _QuotaExceeded(resource.total, most, None)
            others = usage.users - (mine > 0)
            equal = -(-most // (others + 1))
            last = most - usage.unprivileged <= kept
            if last and others and mine >= equal and resource.quota not in self._listed.get(identity, {}):
                return _QuotaExceeded(resource.quota, equal, identity)
        if not resource.divided:
            return None
        if resource is QUEUE and usage.by_holder.get(holder, 0) >= self._values[QUEUE.quota]:
            return _QuotaExceeded(QUEUE.quota, self._values[QUEUE.quota], describe_holder(holder))
        return self._find_exceeded_by_agent(resource, usage, holder, quota)

    def _find_exceeded_by_agent(
        self, resource: Resource, usage: _ResourceUsage, holder: Holder, quota: int
    ) -> _QuotaExceeded | None:
        """Let the labels of one identity divide the last of what it may hold."""
        held = usage.by_holder.get(holder, 0)
        others = usage.labels.get(holder.identity, 0) - (held > 0)
        equal = -(-quota // (others + 1))
        if others > 0 and held >= equal and quota - usage.by_identity.get(holder.identity, 0) <= self._reserve(quota):
            return _QuotaExceeded(resource.quota, equal, describe_holder(holder))
        return None

    def has_room(self, resource: Resource, holder: Holder) -> bool:
        """Return whether a holder may have one more."""
        if not resource.divided and holder.identity in self._privileged and holder.identity not in self._listed:
            return self._usage[resource].total < self._values[resource.total]  # its only limit
        return self._find_exceeded(resource, holder) is None

    def check(self, resource: Resource, holder: Holder, **fields: Any) -> None:
        """Raise RequestError when a holder may not have one more.

        Args:
            resource: The resource.
            holder: The account.
            fields: Further fields of the error.
        """
        exceeded = self._find_exceeded(resource, holder)
        if exceeded is not None:
            suffix = "" if exceeded.holder is None else f" for {exceeded.holder}"
            raise RequestError(
                resource.code,
                f"{resource.err}{suffix} ({exceeded.limit} = {exceeded.value})",
                limit=exceeded.limit,
                limit_value=exceeded.value,
                quota_of=exceeded.holder,
                **fields,
            )

    # --- usage ---

    def charge(self, resource: Resource, holder: Holder) -> None:
        """Count one more."""
        usage, identity = self._usage[resource], holder.identity
        held, mine = usage.by_holder.get(holder, 0), usage.by_identity.get(identity, 0)
        usage.total += 1
        usage.by_holder[holder] = held + 1
        usage.by_identity[identity] = mine + 1
        if not held:
            usage.labels[identity] = usage.labels.get(identity, 0) + 1
        if identity not in self._privileged:
            usage.unprivileged += 1
            usage.users += not mine

    def release(self, resource: Resource, holder: Holder) -> None:
        """Count one less."""
        usage, identity = self._usage[resource], holder.identity
        assert holder in usage.by_holder, f"{holder} holds no {resource.quota}"
        held, mine = usage.by_holder[holder] - 1, usage.by_identity[identity] - 1
        usage.total -= 1
        if held:
            usage.by_holder[holder] = held
        else:
            del usage.by_holder[holder]
            usage.labels[identity] -= 1
        if mine:
            usage.by_identity[identity] = mine
        else:
            del usage.by_identity[identity], usage.labels[identity]
        if identity not in self._privileged:
            usage.unprivileged -= 1
            usage.users -= not mine

    def transfer(self, resource: Resource, before: Holder, after: Holder) -> None:
        """Charge one to another account from here on.

        Raises:
            RequestError: The other account may not hold it. Nothing has changed then.
        """
        self.release(resource, before)
        try:
            self.check(resource, after)
        except RequestError:
            self.charge(resource, before)
            raise
        self.charge(resource, after)

    def total(self, resource: Resource) -> int:
        """Return the sum over all holders."""
        return self._usage[resource].total

    def used_by(self, resource: Resource, identity: str) -> int:
        """Return the count of one identity."""
        return self._usage[resource].by_identity.get(identity, 0)

    def by_holder(self, resource: Resource) -> Mapping[Holder, int]:
        """Return the counts of all holders."""
        return self._usage[resource].by_holder

    def identities(self) -> Iterator[str]:
        """Iterate over the identities that hold anything."""
        yield from dict.fromkeys(each for usage in self._usage.values() for each in usage.by_identity)

    def show(self, identity: str) -> dict[str, dict[str, int]]:
        """Return usage and quota of one identity, by the limit's name."""
        return {
            each.quota: {"used": self.used_by(each, identity), "quota": self.quota(each, identity)}
            for each in RESOURCES
        }


def describe_holder(holder: Holder) -> str:
    """Return a holder in words."""
    return f"agent {holder.agent} of {holder.identity}"
