"""Recognition of loopback addresses."""

from __future__ import annotations

import ipaddress


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine can reach a host.

    Args:
        host: An IP address, in brackets or not, or a name. Of the names only `localhost` is taken for loopback: others
            may resolve to any address, whatever they begin with.
    """
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
