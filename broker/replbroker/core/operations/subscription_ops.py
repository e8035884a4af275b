"""Operations for observers: subscriptions to events, and snapshots of the broker."""

from __future__ import annotations

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import SUBSCRIPTIONS
from replbroker.core.observing.event_bus import Subscription, types_for
from replbroker.core.operations.broker_snapshots import take_snapshots
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.events import as_raw_json
from replwire.faults import RequestError


class SubscriptionOps:
    """Each method takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, pool: WorkerPool) -> None:
        self._state = state
        self._pool = pool

    def subscribe(self, request: wire.Subscribe, peer: Peer, _: bytes, __: float) -> None:
        """Send events of some types to the sender from here on, and buffered ones at once."""
        state = self._state
        session = None if request.session is None else state.lookup.get(request, peer)
        try:
            types = types_for(request.types, output=request.output)
        except ValueError as error:
            raise RequestError("invalid-request", f"types: {error}") from None
        if request.since_seq is not None and session is None:
            raise RequestError("invalid-request", "since-seq needs a session, because event numbers are per session")
        mine = state.bus.subscriptions_of(peer)
        if any(each.request_id == request.id for each in mine):
            raise RequestError("invalid-request", "id: a subscription of this connection has it")
        if len(mine) >= state.limits.max_subscriptions:
            raise state.limit_error("concurrency-limit-reached", "max-subscriptions", "Too many subscriptions")
        holder = state.access.holder_of(request, peer)
        state.quotas.check(SUBSCRIPTIONS, holder)
        state.bus.deliver()  # earlier events are not for this subscription
        buffer = state.bus.buffer_of(session)
        since = buffer.seq if request.since_seq is None else min(request.since_seq, buffer.seq)
        buffered = buffer.after(since)
        state.reply(
            peer,
            request.id,
            status=["subscribed"],
            seq=buffer.seq,
            session=None if session is None else session.id,
            name=None if session is None else session.name,
            events=(
                None
                if request.since_seq is None
                else [as_raw_json(each.body) for each in buffered if each.type in types]
            ),
            missed=None if request.since_seq is None else buffer.seq - since - len(buffered),
        )
        session_id = None if session is None else session.id
        state.bus.subscribe(Subscription(peer, request.id, holder, session_id, types))

    def unsubscribe(self, request: wire.Unsubscribe, peer: Peer, _: bytes, __: float) -> None:
        """End a subscription of the sender."""
        self._state.bus.deliver()
        if not self._state.bus.unsubscribe(peer, request.subscription):
            raise RequestError("invalid-request", f"no subscription {request.subscription} on this connection")
        self._state.reply(peer, request.subscription, status=["done"])
        self._state.reply(peer, request.id, status=["done"])

    def introspect(self, request: wire.Introspect, peer: Peer, _: bytes, now: float) -> None:
        """Reply with snapshots of the broker's parts."""
        if not self._state.access.is_admin(peer):
            raise RequestError("forbidden", "only the broker's own user, root and admins may look inside it")
        snapshots = take_snapshots(self._state, self._pool, request.name, now)
        self._state.reply(peer, request.id, status=["done"], snapshots=snapshots)
