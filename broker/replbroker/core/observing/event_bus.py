"""The event bus: numbers events, keeps the newest for those who catch up, and hands them to whoever may hear them.

Nothing is built while nobody listens: `wanted` says whether anybody does. Numbers are counted all the same, so that
a reader who comes later can tell that there was something.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replbroker.core.clients.access_control import AccessControl
from replbroker.core.effects import Effect, Peer, PublishEvent, ToClient
from replbroker.core.limits.quotas import SUBSCRIPTIONS, Holder, Quotas
from replbroker.core.sessions.event_buffer import BufferedEvent, EventBuffer
from replbroker.core.sessions.session import Session
from replwire import events
from replwire.events import EVENTS, Event, type_name
from replwire.limits import Limits

_EPHEMERAL_TYPES = frozenset(name for name, kind in EVENTS.items() if not kind.canonical)
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
_PendingEvent = tuple[type[Event], Session | None, int, float, dict[str, Any], Callable[[], dict[str, Any]] | None]


class EventBus:
    """All subscriptions. `emit` takes effects, `now` is the moment of what is told, `stamp` makes it a text."""

    def __init__(
        self,
        limits: Limits,
        access: AccessControl,
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
        self._add_effect = emit
        self._now = now
        self._to_iso = stamp
        self._cached_stamp = (0.0, "")
        self._pending: deque[_PendingEvent] = deque()
        self._fanout: Iterator[ToClient] = iter(())  # of the event that is being delivered
        self._fanout_open = False
        self._boot_id = boot
        self._quotas = quotas
        self._emit_all_events = record  # somebody outside wants every canonical event
        self._published_types: frozenset[str] = frozenset()  # ephemeral ones that somebody outside wants
        self._count = 0
        self._broker = EventBuffer()
        self._subscriptions: dict[tuple[Peer, str], Subscription] = {}
        self.has_listeners = record
        self.live_types: frozenset[str] = frozenset()  # the ephemeral types that anybody wants

    def __len__(self) -> int:
        return len(self._subscriptions)

    # --- who listens ---

    def subscribe(self, subscription: Subscription) -> None:
        """Add one."""
        self._subscriptions[subscription.peer, subscription.request_id] = subscription
        self._quotas.charge(SUBSCRIPTIONS, subscription.holder)
        self._update_interest()

    def unsubscribe(self, peer: Peer, request_id: str) -> bool:
        """Remove one; whether there was one."""
        found = self._subscriptions.pop((peer, request_id), None)
        if found is not None:
            self._quotas.release(SUBSCRIPTIONS, found.holder)
        self._update_interest()
        return found is not None

    def subscriptions_of(self, peer: Peer) -> list[Subscription]:
        """The subscriptions of one connection."""
        return [each for (whose, _), each in self._subscriptions.items() if whose == peer]

    def subscriptions_to(self, session: Session) -> list[Subscription]:
        """Those of one session and no other."""
        return [each for each in self._subscriptions.values() if each.session == session.id]

    def all(self) -> list[Subscription]:
        """All of them."""
        return list(self._subscriptions.values())

    def forget_peer(self, peer: Peer) -> None:
        """A connection has gone."""
        for each in self.subscriptions_of(peer):
            self.unsubscribe(peer, each.request_id)

    def set_published_types(self, types: frozenset[str]) -> None:
        """The ephemeral types that readers of the PUB socket want."""
        self._published_types = types & _EPHEMERAL_TYPES
        self._update_interest()

    def _update_interest(self) -> None:
        self.has_listeners = self._emit_all_events or bool(self._subscriptions)
        wanted = [each.types for each in self._subscriptions.values()]
        self.live_types = frozenset().union(self._published_types, *wanted) & _EPHEMERAL_TYPES

    # --- what happens ---

    def buffer_of(self, session: Session | None) -> EventBuffer:
        """A session's, or that of the events without one."""
        return self._broker if session is None else session.event_buffer

    def emit(
        self,
        kind: type[Event],
        session: Session | None = None,
        more: Callable[[], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        """Something happened. It is numbered now, and made an event by `deliver`, with what `more` adds to it, when
        those who wait for an answer have it."""
        if kind.canonical:
            ring = self.buffer_of(session)
            ring.seq += 1
            if self.has_listeners:
                self._pending.append((kind, session, ring.seq, self._now(), fields, more))
        elif type_name(kind) in self.live_types:
            self._pending.append((kind, session, 0, self._now(), fields, more))

    @property
    def pending_effects(self) -> int:
        """How many effects `deliver` has to make, about."""
        return (len(self._pending) + self._fanout_open) * max(1, len(self._subscriptions))

    def deliver(self, most: float = math.inf) -> None:
        """Make events of what was told, and hand them to whoever may hear them: to all, or to about `most` readers.
        A thousand are served in parts, so that nobody's answer waits for that."""
        while self.pending_effects and most > 0:
            if not self._fanout_open:
                self._publish(self._pending.popleft())
                most -= 1
            for effect in self._fanout:
                self._add_effect(effect)
                most -= 1
                if most <= 0:
                    return
            self._fanout_open = False

    def _publish(self, told: _PendingEvent) -> None:
        kind, session, seq, when, fields, more = told
        self._count += 1
        if when != self._cached_stamp[0]:
            self._cached_stamp = when, self._to_iso(when)
        event = kind(
            v=events.VERSION,
            id=f"{self._boot_id}-{self._count:x}",
            seq=seq,
            time=self._cached_stamp[1],
            session=None if session is None else session.id,
            emitter=fields.pop("emitter", events.BROKER),
            **fields,
            **(more() if more else {}),
        )
        body, name = events.encode(event), type_name(kind)
        if kind.canonical:
            self.buffer_of(session).append(BufferedEvent(seq, name, body), self.limits)
        if self._emit_all_events or name in self._published_types:
            self._add_effect(PublishEvent(name, self._transcript_id(kind, session), body, when))
        if self._subscriptions:
            self._fanout, self._fanout_open = self._build_fanout(name, body, session), True

    def _build_fanout(self, name: str, body: bytes, session: Session | None) -> Iterator[ToClient]:
        for key, each in list(self._subscriptions.items()):
            if name in each.types and key in self._subscriptions and self._may_receive(each, session):
                yield ToClient(each.peer, events.wrap_event(each.request_id, body), each.request_id, event=True)

    @staticmethod
    def _transcript_id(kind: type[Event], session: Session | None) -> str | None:
        """Which transcript keeps it."""
        if not kind.canonical or (session is not None and session.ephemeral):
            return None
        return events.BROKER if session is None else session.id

    def _may_receive(self, subscription: Subscription, session: Session | None) -> bool:
        if session is None:
            return subscription.session is None and self._access.is_admin_identity(subscription.holder.identity)
        if subscription.session not in (None, session.id):
            return False
        return self._access.may_see(session, subscription.holder.identity)


def types_for(words: list[str], *, output: bool) -> frozenset[str]:
    """The types a subscription gets. Raises ValueError for a word that means none."""
    types = events.matching_types(words)
    return types | _OUTPUT if output else types - _OUTPUT
