"""Messages of the egress proxy, one JSON datagram each: from workers, to workers and to the broker."""

from __future__ import annotations

import msgspec

from replwire.network import NetworkRules, TrafficRecord
from replwire.secret_entries import Placeholder
from replworker.egress.listeners import Listener

MAX_BYTES = 256 * 1024
MAX_FDS = 253  # SCM_MAX_FD


class ServeMessage(msgspec.Struct, frozen=True, tag="serve"):
    """Worker: serve these sockets, whose descriptors come along in this order, by these rules."""

    session: str
    rules: NetworkRules
    listeners: list[Listener]
    authority: str = ""  # key and certificate, from an AuthorityReply
    placeholders: list[Placeholder] = []


class RulesMessage(msgspec.Struct, frozen=True, tag="rules"):
    """Worker: from now on use these rules."""

    rules: NetworkRules


class AuthorityRequest(msgspec.Struct, frozen=True, tag="authority"):
    """Worker: make a certificate authority for a session with secrets."""


class AuthorityReply(msgspec.Struct, frozen=True):
    """Proxy to worker: a new authority, with its key and without."""

    authority: str
    certificate: str


class RefusalMessage(msgspec.Struct, frozen=True):
    """Proxy to worker: something was not reached, for this reason."""

    reason: str


encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(ServeMessage | RulesMessage | AuthorityRequest).decode
decode_refusal = msgspec.json.Decoder(RefusalMessage).decode
decode_authority = msgspec.json.Decoder(AuthorityReply).decode
decode_records = msgspec.json.Decoder(list[TrafficRecord]).decode
