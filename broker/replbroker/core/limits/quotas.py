"""Quotas: how much of each shared total an identity may hold, and each of its agents.

Of every total a reserve is for the broker's own user, root and admins. Anybody else may hold a share of it, and while
several do, one that has more than an equal part leaves the last of it to the others. Labels of agents divide what their
identity may hold by the same rule; a new label never adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from replwire.faults import RequestError
from replwire.limits import Limits


class Holder(NamedTuple):
    """An account that something is held on. `agent` is a label, or stands for one connection."""

    identity: str
    agent: str = ""


class Resource(NamedTuple):
    """A counted resource. `quota` and `total` are names of limits, `word` and `err` those of a refusal."""

    quota: str  # what one identity may hold
    total: str  # what all together may
    word: str
    err: str
    divided: bool = True  # agents of one identity divide it; else it is handed round, or the oldest goes


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
RESOURCES: Final = (CONNECTIONS, SESSIONS, SLOTS, QUEUE, READS, SUBSCRIPTIONS, IDEMPOTENCY_KEYS)
_FIELDS = {name: name.replace("-", "_") for each in RESOURCES for name in (each.quota, each.total)}


class _QuotaExceeded(NamedTuple):
    """The reason why there is no more: the bound that was met, its value, and whose it is (None: of all)."""

    limit: str
    value: int
    whose: str | None


class _ResourceUsage:
    """Counts of one resource."""

    __slots__ = ("by_holder", "by_identity", "labels", "total", "unprivileged", "users")

    def __init__(self) -> None:
        self.total = 0
        self.unprivileged = 0  # of it without the broker's own user and admins
        self.users = 0  # identities that hold that
        self.by_holder: dict[Holder, int] = {}
        self.by_identity: dict[str, int] = {}
        self.labels: dict[str, int] = {}  # agents that hold some, by identity


class Quotas:
    """Counts and bounds of every resource. Whoever charges releases, on the same holder."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        listed: Mapping[str, Mapping[str, int]],
        is_privileged: Callable[[str], bool],
    ) -> None:
        """`listed` are the quotas that the config gives to identities, by the names of limits."""
        self._limits = limits
        self._listed = listed
        self._is_privileged = is_privileged
        self._usage = {resource: _ResourceUsage() for resource in RESOURCES}

    # --- what may be held ---

    def _limit(self, name: str) -> int:
        limit: int = getattr(self._limits(), _FIELDS[name])
        return limit

    def _reserve(self, total: int) -> int:
        """The last part of a total: all but one at most, so that a small total has room for anybody."""
        return max(0, min(total - 1, -(-total * self._limits().reserve_percent // 100)))

    def quota(self, resource: Resource, identity: str) -> int:
        """Return the most that one identity may hold."""
        listed = self._listed.get(identity, {}).get(resource.quota)
        total = self._limit(resource.total)
        if listed is not None:
            return min(listed, total)
        if self._is_privileged(identity):
            return total
        most = total - self._reserve(total)
        if resource.quota != resource.total:
            return min(most, self._limit(resource.quota))
        return min(most, -(-total * self._limits().identity_share_percent // 100))

    def _find_exceeded(self, resource: Resource, holder: Holder) -> _QuotaExceeded | None:
        usage, identity, total = self._usage[resource], holder.identity, self._limit(resource.total)
        if usage.total >= total:
            return _QuotaExceeded(resource.total, total, None)
        quota, mine = self.quota(resource, identity), usage.by_identity.get(identity, 0)
        if mine >= quota:
            return _QuotaExceeded(resource.quota, quota, identity)
        if not self._is_privileged(identity):
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
        if resource is QUEUE and usage.by_holder.get(holder, 0) >= self._limit(QUEUE.quota):
            return _QuotaExceeded(QUEUE.quota, self._limit(QUEUE.quota), describe_holder(holder))
        return self._find_exceeded_by_agent(resource, usage, holder, quota)

    def _find_exceeded_by_agent(
        self, resource: Resource, usage: _ResourceUsage, holder: Holder, quota: int
    ) -> _QuotaExceeded | None:
        """The labels of one identity divide what it may hold, once it comes to the last of it."""
        held = usage.by_holder.get(holder, 0)
        others = usage.labels.get(holder.identity, 0) - (held > 0)
        equal = -(-quota // (others + 1))
        if others > 0 and held >= equal and quota - usage.by_identity.get(holder.identity, 0) <= self._reserve(quota):
            return _QuotaExceeded(resource.quota, equal, describe_holder(holder))
        return None

    def has_room(self, resource: Resource, holder: Holder) -> bool:
        """Return whether a holder may have one more."""
        return self._find_exceeded(resource, holder) is None

    def check(self, resource: Resource, holder: Holder, **more: Any) -> None:
        """Raise Refusal when a holder may not have one more."""
        lack = self._find_exceeded(resource, holder)
        if lack is not None:
            whose = "" if lack.whose is None else f" for {lack.whose}"
            raise RequestError(
                resource.word,
                f"{resource.err}{whose} ({lack.limit} = {lack.value})",
                limit=lack.limit,
                limit_value=lack.value,
                quota_of=lack.whose,
                **more,
            )

    # --- what is held ---

    def charge(self, resource: Resource, holder: Holder) -> None:
        """Count one more."""
        usage, identity = self._usage[resource], holder.identity
        held, mine = usage.by_holder.get(holder, 0), usage.by_identity.get(identity, 0)
        usage.total += 1
        usage.by_holder[holder] = held + 1
        usage.by_identity[identity] = mine + 1
        if not held:
            usage.labels[identity] = usage.labels.get(identity, 0) + 1
        if not self._is_privileged(identity):
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
        if not self._is_privileged(identity):
            usage.unprivileged -= 1
            usage.users -= not mine

    def reload(self, listed: Mapping[str, Mapping[str, int]]) -> None:
        """Take over other quotas from the config, and admins: what is held without them is another sum."""
        self._listed = listed
        for usage in self._usage.values():
            users = {who: count for who, count in usage.by_identity.items() if not self._is_privileged(who)}
            usage.unprivileged, usage.users = sum(users.values()), len(users)

    def transfer(self, resource: Resource, before: Holder, after: Holder) -> None:
        """Count one on another account from here on. Raises Refusal when that one may not hold it; nothing has changed
        then."""
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
        """Return what one identity holds and may hold, by the limit's name."""
        return {
            each.quota: {"used": self.used_by(each, identity), "quota": self.quota(each, identity)}
            for each in RESOURCES
        }


def describe_holder(holder: Holder) -> str:
    """A holder in words."""
    return f"agent {holder.agent} of {holder.identity}"
