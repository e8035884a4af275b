"""The end of subscriptions whose subject, client or broker is gone."""

from __future__ import annotations

from collections.abc import Iterable

from replbroker.core.observing.event_bus import Subscription
from replbroker.core.state import BrokerState


def end_subscriptions(
    state: BrokerState, subscriptions: Iterable[Subscription], status: list[str], err: str | None = None
) -> None:
    """Send the final message of each subscription, after the events that it still has to get."""
    state.bus.deliver()
    for each in subscriptions:
        state.bus.unsubscribe(each.peer, each.request_id)
        state.reply(each.peer, each.request_id, status=status, err=err)
