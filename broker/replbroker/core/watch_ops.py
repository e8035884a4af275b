"""Operations of those who look on: subscriptions and snapshots."""

from __future__ import annotations

from collections.abc import Iterable

from replbroker.core.bus import Subscription, types_for
from replbroker.core.effects import Peer
from replbroker.core.introspect import snapshots
from replbroker.core.quotas import SUBSCRIPTIONS
from replbroker.core.staff import Staff
from replbroker.core.state import State
from replwire import ops as wire
from replwire.events import raw
from replwire.faults import Refusal


class WatchOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, staff: Staff) -> None:
        self._state = state
        self._staff = staff

    def subscribe(self, request: wire.Subscribe, peer: Peer, _: bytes, __: float) -> None:
        state = self._state
        session = None if request.session is None else state.lookup.get(request, peer)
        try:
            types = types_for(request.types, output=request.output)
        except ValueError as error:
            raise Refusal("invalid-request", f"types: {error}") from None
        if request.since_seq is not None and session is None:
            raise Refusal("invalid-request", "since-seq needs a session: each one counts its own events")
        mine = state.bus.of(peer)
        if any(each.request_id == request.id for each in mine):
            raise Refusal("invalid-request", "id: a subscription of this connection has it")
        if len(mine) >= state.limits.max_subscriptions:
            raise state.full("concurrency-limit-reached", "max-subscriptions", "Too many subscriptions")
        holder = state.holder(request, peer)
        state.quotas.check(SUBSCRIPTIONS, holder)
        state.bus.deliver()  # what happened before is not for this one
        ring = state.bus.ring(session)
        since = ring.seq if request.since_seq is None else min(request.since_seq, ring.seq)
        kept = ring.after(since)
        state.say(
            peer,
            request.id,
            status=["subscribed"],
            seq=ring.seq,
            session=None if session is None else session.id,
            name=None if session is None else session.name,
            events=None if request.since_seq is None else [raw(each.body) for each in kept if each.type in types],
            missed=None if request.since_seq is None else ring.seq - since - len(kept),
        )
        where = None if session is None else session.id
        state.bus.subscribe(Subscription(peer, request.id, holder, where, types))

    def unsubscribe(self, request: wire.Unsubscribe, peer: Peer, _: bytes, __: float) -> None:
        self._state.bus.deliver()
        if not self._state.bus.unsubscribe(peer, request.subscription):
            raise Refusal("invalid-request", f"no subscription {request.subscription} on this connection")
        self._state.say(peer, request.subscription, status=["done"])
        self._state.say(peer, request.id, status=["done"])

    def introspect(self, request: wire.Introspect, peer: Peer, _: bytes, now: float) -> None:
        if not self._state.access.is_admin(peer):
            raise Refusal("forbidden", "only the broker's own user, root and admins may look inside it")
        self._state.say(
            peer, request.id, status=["done"], snapshots=snapshots(self._state, self._staff, request.name, now)
        )


def end_subscriptions(state: State, some: Iterable[Subscription], status: list[str], err: str | None = None) -> None:
    """Tell them that nothing more comes, after what they are still to hear."""
    state.bus.deliver()
    for each in some:
        state.bus.unsubscribe(each.peer, each.request_id)
        state.say(each.peer, each.request_id, status=status, err=err)
