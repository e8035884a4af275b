"""Versions of broker and client, where they differ."""

from __future__ import annotations

from typing import Any

from replbroker.core.access import ANYBODY
from replbroker.core.effects import Peer
from replbroker.core.state import State


def tell_version(state: State, own: str, peer: Peer, raw: dict[str, Any]) -> None:
    """Tell a client of another version which one this is: before its request is looked at, which may be one that this
    version does not have."""
    known = own and state.access.of(peer) != ANYBODY
    if known and raw["client-version"] != own:
        state.say(peer, raw["id"], broker_version=own)
