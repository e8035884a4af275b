"""Version notice: what a client is told that is connected to another broker than the one it knows."""

from __future__ import annotations

from typing import Any

from replbroker.core.effects import Peer
from replbroker.core.state import BrokerState
from replwire.identities import ANONYMOUS


def send_version_notice(state: BrokerState, version: str, peer: Peer, raw: dict[str, Any]) -> None:
    """Send version and instance of the broker where they are others, before an error for an operation unknown here.

    Args:
        state: The broker's state.
        version: The broker's version, or an empty string.
        peer: The connection.
        raw: The fields of its request.
    """
    if state.access.identity_of(peer) == ANONYMOUS:
        return
    instance, fields = state.config.boot_id, {}
    if version and raw.get("client-version", version) != version:
        fields["broker_version"] = version
    if raw.get("known-instance", instance) != instance:
        fields["instance"] = instance
    if fields:
        state.reply(peer, raw["id"], **fields)
