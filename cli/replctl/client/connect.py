"""Connecting to a broker, which is started if none is running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from replctl.client.address import Address, directory_problem, is_listening
from replctl.client.errors import ReplError
from replctl.client.transport import Transport
from replwire.paths import ipc_path

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady
    from replwire.keys import ClientKey

SHUTDOWN_SECONDS = 10.0  # time for a stopping broker to exit before a new one is started
HANDSHAKE_SECONDS = 2.0  # time for the handshake; the request itself waits for a busy broker
RETRY_SECONDS = 0.02


def connect(
    address: Address, start: bool, on_start: Callable[[BrokerReady], None] | None, key: str | None = None
) -> Transport:
    """Connect to the broker at this address, starting it if none listens and `start` allows it.

    Args:
        address: Where the broker is.
        start: Start a broker if none is running.
        on_start: Called with the ready message of a broker that was started.
        key: Client key file, else that of REPLCTL_KEY_FILE; used for endpoints over TCP.

    Raises:
        ReplError: `no-broker`, or `unauthorized` for an unusable key file.
    """
    if address.endpoint.startswith("ssh://"):
        return _connect_over_ssh(address.endpoint, start)
    path = ipc_path(address.endpoint)
    if address.source == "default" and path and (why := directory_problem(os.path.dirname(path), os.getuid())):
        raise ReplError("no-broker", f"the socket's directory cannot be trusted: {why}")
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    while True:
        if not is_listening(address.endpoint):
            if not start:
                raise ReplError("no-broker", f"no broker is running at {address.endpoint}")
            from replctl.client.start import ensure_broker  # most calls find a running broker

            started = ensure_broker(address.endpoint, os.environ)
            if started is not None and on_start is not None:
                on_start(started)
        transport = Transport(address.endpoint, _client_key(address, key))
        if path is None or not start or transport.wait_for_handshake(HANDSHAKE_SECONDS) or time.monotonic() > deadline:
            return transport
        transport.close()  # a stopping broker closed before the handshake: find or start the next one
        time.sleep(RETRY_SECONDS)


def _connect_over_ssh(endpoint: str, start: bool) -> Transport:
    from replctl.client.ssh import SshTunnel  # few users have brokers elsewhere

    tunnel = SshTunnel(endpoint, start)
    return Transport(f"ipc://{tunnel.path}", name=endpoint, tunnel=tunnel)


def _client_key(address: Address, key: str | None) -> ClientKey | None:
    path = key or os.environ.get("REPLCTL_KEY_FILE")
    if not path or not address.endpoint.startswith("tcp://"):
        return None
    from replwire.keys import InvalidKey, read_client_key  # few users have a key

    try:
        return read_client_key(path)
    except InvalidKey as error:
        raise ReplError("unauthorized", str(error)) from None
