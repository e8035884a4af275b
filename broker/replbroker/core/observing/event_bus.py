"""The event bus: numbers events, buffers the newest for clients that catch up, and sends them to subscribers.

No event is built without a listener. Numbers are counted all the same, so that a later reader sees the gap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replbroker.core.clients.access_control import AccessControl
from replbroker.core.clock import CoreClock
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
    """A subscription of a client."""

    peer: Peer
    request_id: str
    holder: Holder
    session: str | None
    types: frozenset[str]


# An event that is numbered and not built yet: type, session, number, moment, fields, and a function that adds fields.
_PendingEvent = tuple[type[Event], Session | None, int, float, dict[str, Any], Callable[[], dict[str, Any]] | None]


class EventBus:
    """All subscriptions, and the events on their way to them.

    Attributes:
        limits: The limits of the broker.
        has_listeners: True if anybody wants canonical events.
        live_types: The ephemeral types that anybody wants.
    """

    def __init__(
        self,
        limits: Limits,
        access: AccessControl,
        add_effect: Callable[[Effect], None],
        clock: CoreClock,
        *,
        boot_id: str,
        emit_all_events: bool,
        quotas: Quotas,
    ) -> None:
        self.limits = limits
        self._access = access
        self._add_effect = add_effect
        self._clock = clock
        self._cached_stamp = (0.0, "")
        self._pending: deque[_PendingEvent] = deque()
        self._fanout: Iterator[ToClient] = iter(())  # of the event that is being delivered
        self._fanout_open = False
        self._boot_id = boot_id
        self._quotas = quotas
        self._emit_all_events = emit_all_events  # the shell wants every canonical event
        self._published_types: frozenset[str] = frozenset()  # ephemeral ones that the shell wants
        self._count = 0
        self._broker_buffer = EventBuffer()
        self._subscriptions: dict[tuple[Peer, str], Subscription] = {}
        self.has_listeners = emit_all_events
        self.live_types: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._subscriptions)

    # --- subscriptions ---

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription."""
        self._subscriptions[subscription.peer, subscription.request_id] = subscription
        self._quotas.charge(SUBSCRIPTIONS, subscription.holder)
        self._update_interest()

    def unsubscribe(self, peer: Peer, request_id: str) -> bool:
        """Remove a subscription. Return whether there was one."""
        found = self._subscriptions.pop((peer, request_id), None)
        if found is not None:
            self._quotas.release(SUBSCRIPTIONS, found.holder)
        self._update_interest()
        return found is not None

    def subscriptions_of(self, peer: Peer) -> list[Subscription]:
        """Return the subscriptions of one connection."""
        return [each for (owner, _), each in self._subscriptions.items() if owner == peer]

    def subscriptions_to(self, session: Session) -> list[Subscription]:
        """Return the subscriptions to one session."""
        return [each for each in self._subscriptions.values() if each.session == session.id]

    def all(self) -> list[Subscription]:
        """Return all subscriptions."""
        return list(self._subscriptions.values())

    def forget_peer(self, peer: Peer) -> None:
        """Remove the subscriptions of a connection that has ended."""
        if self._subscriptions:
            for each in self.subscriptions_of(peer):
                self.unsubscribe(peer, each.request_id)

    def set_published_types(self, types: frozenset[str]) -> None:
        """Set the ephemeral types that readers of the PUB socket want."""
        self._published_types = types & _EPHEMERAL_TYPES
        self._update_interest()

    def _update_interest(self) -> None:
        self.has_listeners = self._emit_all_events or bool(self._subscriptions)
        wanted = [each.types for each in self._subscriptions.values()]
        self.live_types = frozenset().union(self._published_types, *wanted) & _EPHEMERAL_TYPES

    # --- events ---

    def buffer_of(self, session: Session | None) -> EventBuffer:
        """Return a session's buffer, or that of the events without a session."""
        return self._broker_buffer if session is None else session.event_buffer

    def emit(
        self,
        kind: type[Event],
        session: Session | None = None,
        more: Callable[[], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        """Assign an event its number. `deliver` builds it, after the replies of this call were sent.

        Args:
            kind: The type of the event.
            session: The session it is about, or None for the broker.
            more: Returns further fields; called once, if the event is built.
            fields: Fields of the event.
        """
        if kind.canonical:
            buffer = self._broker_buffer if session is None else session.event_buffer
            buffer.seq += 1
            if self.has_listeners:
                self._pending.append((kind, session, buffer.seq, self._clock.now, fields, more))
        elif type_name(kind) in self.live_types:
            self._pending.append((kind, session, 0, self._clock.now, fields, more))

    def pending_effects(self) -> int:
        """Return the approximate number of effects that `deliver` has to make."""
        return (len(self._pending) + self._fanout_open) * max(1, len(self._subscriptions))

    def deliver(self, most: float = math.inf) -> None:
        """Build pending events and send them to subscribers.

        Args:
            most: Stop after about so many effects. A thousand subscribers are served in parts, so that no client's
                reply waits for all of them.
        """
        while (self._pending or self._fanout_open) and most > 0:
            if not self._fanout_open:
                self._build_and_publish(*self._pending.popleft())
                most -= 1
            if self._fanout_open:
                for effect in self._fanout:
                    self._add_effect(effect)
                    most -= 1
                    if most <= 0:
                        return
                self._fanout_open = False

    def _build_and_publish(
        self,
        kind: type[Event],
        session: Session | None,
        seq: int,
        when: float,
        fields: dict[str, Any],
        more: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self._count += 1
        if when != self._cached_stamp[0]:
            self._cached_stamp = when, self._clock.to_iso(when)
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
            buffer = self._broker_buffer if session is None else session.event_buffer
            buffer.append(BufferedEvent(seq, name, body), self.limits)
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
        """Return the transcript that stores an event, or None."""
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
    """Return the event types that a subscription gets. Raises ValueError for a word that matches none."""
    types = events.matching_types(words)
    return types | _OUTPUT if output else types - _OUTPUT
