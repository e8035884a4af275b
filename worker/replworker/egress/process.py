"""Entry of the egress proxy's process, apart from the proxy: whoever starts it has no need of asyncio."""

from __future__ import annotations

import importlib
import socket
import sys

from replwire.secret_entries import SecretEntry


def serve(listener: socket.socket, control: socket.socket, secrets: tuple[SecretEntry, ...]) -> None:
    """Serve until the broker ends.

    Args:
        listener: Listens for workers; sequenced packets.
        control: Connected to the broker; sequenced packets.
        secrets: The secrets, without their values.
    """
    if not secrets and "ssl" not in sys.modules:
        _import_without_tls("asyncio")
    from replworker.egress.proxy import run_proxy

    run_proxy(listener, control, secrets)


def _import_without_tls(name: str) -> None:
    """Import a module that does without TLS where there is none: OpenSSL is a tenth of a proxy's memory."""
    sys.modules["ssl"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        importlib.import_module(name)
    finally:
        del sys.modules["ssl"]
