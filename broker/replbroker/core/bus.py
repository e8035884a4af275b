"""The event bus: numbers events, keeps the newest for those who catch up, and hands them to whoever may hear them.

Nothing is built while nobody listens: `wanted` says whether anybody does. Numbers are counted all the same, so that
a reader who comes later can tell that there was something.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replbroker.core.access import Access
from replbroker.core.effects import Effect, Happened, Peer, ToClient
from replbroker.core.quotas import SUBSCRIPTIONS, Holder, Quotas
from replbroker.core.ring import Kept, Ring
from replbroker.core.session import Session
from replwire import events
from replwire.events import EVENTS, Event, name_of
from replwire.limits import Limits

_LIVE = frozenset(name for name, kind in EVENTS.items() if not kind.canonical)
_OUTPUT = frozenset({"eval/output", "eval/output-end"})


class Subscription(NamedTuple):
    """One `subscribe` that goes on."""

    peer: Peer
    request_id: str
    holder: Holder
    session: str | None
    types: frozenset[str]


# Something that happened and is not an event yet: what, in which session, its number, when, its fields, and what adds
# more of them later.
_Told = tuple[type[Event], Session | None, int, float, dict[str, Any], Callable[[], dict[str, Any]] | None]


class Bus:
    """All subscriptions. `emit` takes effects, `now` is the moment of what is told, `stamp` makes it a text."""

    def __init__(
        self,
        limits: Limits,
        access: Access,
        emit: Callable[[Effect], None],
        now: Callable[[], float],
        stamp: Callable[[float], str],
        *,
        boot: str,
        record: bool,
        quotas: Quotas,
    ) -> None:
        self.limits = limits
        self._access = access
        self._emit = emit
        self._now = now
        self._stamp = stamp
        self._stamped = (0.0, "")
        self._told: deque[_Told] = deque()
        self._hearers: Iterator[ToClient] = iter(())  # of the event that is being delivered
        self._half_told = False
        self._boot = boot
        self._quotas = quotas
        self._record = record  # somebody outside wants every canonical event
        self._published: frozenset[str] = frozenset()  # ephemeral ones that somebody outside wants
        self._count = 0
        self._broker = Ring()
        self._subscriptions: dict[tuple[Peer, str], Subscription] = {}
        self.wanted = record
        self.live: frozenset[str] = frozenset()  # the ephemeral types that anybody wants

    def __len__(self) -> int:
        return len(self._subscriptions)

    # --- who listens ---

    def subscribe(self, subscription: Subscription) -> None:
        """Add one."""
        self._subscriptions[subscription.peer, subscription.request_id] = subscription
        self._quotas.charge(SUBSCRIPTIONS, subscription.holder)
        self._settle()

    def unsubscribe(self, peer: Peer, request_id: str) -> bool:
        """Remove one; whether there was one."""
        found = self._subscriptions.pop((peer, request_id), None)
        if found is not None:
            self._quotas.release(SUBSCRIPTIONS, found.holder)
        self._settle()
        return found is not None

    def of(self, peer: Peer) -> list[Subscription]:
        """The subscriptions of one connection."""
        return [each for (whose, _), each in self._subscriptions.items() if whose == peer]

    def about(self, session: Session) -> list[Subscription]:
        """Those of one session and no other."""
        return [each for each in self._subscriptions.values() if each.session == session.id]

    def every(self) -> list[Subscription]:
        """All of them."""
        return list(self._subscriptions.values())

    def forget(self, peer: Peer) -> None:
        """A connection has gone."""
        for each in self.of(peer):
            self.unsubscribe(peer, each.request_id)

    def publish(self, types: frozenset[str]) -> None:
        """The ephemeral types that readers of the PUB socket want."""
        self._published = types & _LIVE
        self._settle()

    def _settle(self) -> None:
        self.wanted = self._record or bool(self._subscriptions)
        wanted = [each.types for each in self._subscriptions.values()]
        self.live = frozenset().union(self._published, *wanted) & _LIVE

    # --- what happens ---

    def ring(self, session: Session | None) -> Ring:
        """A session's, or that of the events without one."""
        return self._broker if session is None else session.ring

    def tell(
        self,
        kind: type[Event],
        session: Session | None = None,
        more: Callable[[], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        """Something happened. It is numbered now, and made an event by `deliver`, with what `more` adds to it, when
        those who wait for an answer have it."""
        if kind.canonical:
            ring = self.ring(session)
            ring.seq += 1
            if self.wanted:
                self._told.append((kind, session, ring.seq, self._now(), fields, more))
        elif name_of(kind) in self.live:
            self._told.append((kind, session, 0, self._now(), fields, more))

    @property
    def untold(self) -> int:
        """How many effects `deliver` has to make, about."""
        return (len(self._told) + self._half_told) * max(1, len(self._subscriptions))

    def deliver(self, most: float = math.inf) -> None:
        """Make events of what was told, and hand them to whoever may hear them: to all, or to about `most` readers.
        A thousand are served in parts, so that nobody's answer waits for that."""
        while self.untold and most > 0:
            if not self._half_told:
                self._publish(self._told.popleft())
                most -= 1
            for effect in self._hearers:
                self._emit(effect)
                most -= 1
                if most <= 0:
                    return
            self._half_told = False

    def _publish(self, told: _Told) -> None:
        kind, session, seq, when, fields, more = told
        self._count += 1
        if when != self._stamped[0]:
            self._stamped = when, self._stamp(when)
        event = kind(
            v=events.VERSION,
            id=f"{self._boot}-{self._count:x}",
            seq=seq,
            time=self._stamped[1],
            session=None if session is None else session.id,
            emitter=fields.pop("emitter", events.BROKER),
            **fields,
            **(more() if more else {}),
        )
        body, name = events.encode(event), name_of(kind)
        if kind.canonical:
            self.ring(session).keep(Kept(seq, name, body), self.limits)
        if self._record or name in self._published:
            self._emit(Happened(name, self._book(kind, session), body, when))
        if self._subscriptions:
            self._hearers, self._half_told = self._to_hearers(name, body, session), True

    def _to_hearers(self, name: str, body: bytes, session: Session | None) -> Iterator[ToClient]:
        for key, each in list(self._subscriptions.items()):
            if name in each.types and key in self._subscriptions and self._may_hear(each, session):
                yield ToClient(each.peer, events.carried(each.request_id, body), each.request_id, event=True)

    @staticmethod
    def _book(kind: type[Event], session: Session | None) -> str | None:
        """Which transcript keeps it."""
        if not kind.canonical or (session is not None and session.ephemeral):
            return None
        return events.BROKER if session is None else session.id

    def _may_hear(self, subscription: Subscription, session: Session | None) -> bool:
        if session is None:
            return subscription.session is None and self._access.is_admin_identity(subscription.holder.identity)
        if subscription.session not in (None, session.id):
            return False
        return self._access.may_see(session, subscription.holder.identity)


def types_for(words: list[str], *, output: bool) -> frozenset[str]:
    """The types a subscription gets. Raises ValueError for a word that means none."""
    types = events.wanted_types(words)
    return types | _OUTPUT if output else types - _OUTPUT
