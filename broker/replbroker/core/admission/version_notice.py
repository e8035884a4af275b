"""Versions of broker and client, where they differ."""

from __future__ import annotations

from typing import Any

from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import Peer
from replbroker.core.state import BrokerState


def send_version_notice(state: BrokerState, own: str, peer: Peer, raw: dict[str, Any]) -> None:
    """Tell a client of another version which one this is: before its request is looked at, which may be one that this
    version does not have."""
    known = own and state.access.identity_of(peer) != ANONYMOUS
    if known and raw["client-version"] != own:
        state.reply(peer, raw["id"], broker_version=own)
