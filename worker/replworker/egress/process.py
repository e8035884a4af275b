"""Entry of the egress proxy's process, apart from the proxy: whoever starts it has no need of asyncio."""

from __future__ import annotations

import socket

from replwire.secret_entries import SecretEntry


def serve(listener: socket.socket, control: socket.socket, secrets: tuple[SecretEntry, ...]) -> None:
    """Serve until the broker ends.

    Args:
        listener: Listens for workers; sequenced packets.
        control: Connected to the broker; sequenced packets.
        secrets: The secrets, without their values.
    """
    from replworker.egress.proxy import run_proxy

    run_proxy(listener, control, secrets)
