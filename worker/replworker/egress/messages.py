"""Messages of the egress proxy, one JSON datagram each: from workers, to workers and to the broker."""

from __future__ import annotations

import msgspec

from replwire.network import NetworkRules, TrafficRecord
from replworker.egress.listeners import Listener

MAX_BYTES = 256 * 1024
MAX_FDS = 253  # SCM_MAX_FD


class ServeMessage(msgspec.Struct, frozen=True, tag="serve"):
    """Worker: serve these sockets, whose descriptors come along in this order, by these rules."""

    session: str
    rules: NetworkRules
    listeners: list[Listener]


class RulesMessage(msgspec.Struct, frozen=True, tag="rules"):
    """Worker: from now on use these rules."""

    rules: NetworkRules


class RefusalMessage(msgspec.Struct, frozen=True):
    """Proxy to worker: something was not reached, for this reason."""

    reason: str


encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(ServeMessage | RulesMessage).decode
decode_refusal = msgspec.json.Decoder(RefusalMessage).decode
decode_records = msgspec.json.Decoder(list[TrafficRecord]).decode
