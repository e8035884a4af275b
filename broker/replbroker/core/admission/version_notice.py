"""Version notice: a client of another version is told which one the broker has."""

from __future__ import annotations

from typing import Any

from replbroker.core.effects import Peer
from replbroker.core.state import BrokerState
from replwire.identities import ANONYMOUS


def send_version_notice(state: BrokerState, version: str, peer: Peer, raw: dict[str, Any]) -> None:
    """Send the broker's version to a client of another one, before an error for an operation that is unknown here.

    Args:
        state: The broker's state.
        version: The broker's version, or an empty string.
        peer: The connection.
        raw: The fields of its request.
    """
    known = version and state.access.identity_of(peer) != ANONYMOUS
    if known and raw["client-version"] != version:
        state.reply(peer, raw["id"], broker_version=version)
