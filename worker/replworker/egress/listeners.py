"""Listening sockets that a session with a list of hosts gets inside its network namespace: a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from replwire.network import FIRST_FREE_PORT, VIRTUAL_NETWORK, NetworkRules, allowed_patterns, is_address

ANY = "0.0.0.0"
OWN_ADDRESS = str(VIRTUAL_NETWORK[1])
PREFIX_BITS = VIRTUAL_NETWORK.prefixlen
DNS_PORT, PROXY_PORT = 53, 80
_FIRST_FIXED, _MAX_FIXED = 256, 2048  # addresses of names with ports from 1024 on
FIRST_DYNAMIC = 4096
_MAX_PORTS = 128


class Listener(msgspec.Struct, frozen=True):
    """A listening socket. `name` is the host that its address stands for, if it stands for one."""

    kind: Literal["tcp", "udp"]
    address: str
    port: int
    name: str | None = None


def plan_listeners(rules: NetworkRules) -> list[Listener]:
    """Return the sockets for these rules.

    Ports below 1024, which a session cannot bind itself, are bound once for all addresses. Each name with another port
    has an address of its own, so that the port stays the session's on other addresses.
    """
    patterns = allowed_patterns(rules)
    low = {80, 443, *(port for each in patterns for port in each.ports if port < FIRST_FREE_PORT)}
    high = {each.name: None for each in patterns for port in each.ports if port >= FIRST_FREE_PORT}
    addresses = dict(zip((name for name in high if not is_address(name)), _fixed_addresses(), strict=False))
    found = [Listener("udp", ANY, DNS_PORT), Listener("tcp", ANY, DNS_PORT)]
    found += [Listener("tcp", ANY, port) for port in sorted(low - {DNS_PORT})]
    for each in patterns:
        address = each.name if is_address(each.name) else addresses.get(each.name)
        if address is not None:
            found += [
                Listener("tcp", address, port, each.name) for port in sorted(each.ports) if port >= FIRST_FREE_PORT
            ]
    return list(dict.fromkeys(found))[:_MAX_PORTS]


def _fixed_addresses() -> Iterator[str]:
    return (str(VIRTUAL_NETWORK[number]) for number in range(_FIRST_FIXED, _FIRST_FIXED + _MAX_FIXED))
