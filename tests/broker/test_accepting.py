"""TCP listeners that can be held: see replbroker.transports.pausable_listeners."""

from __future__ import annotations

import socket

import pytest

from replbroker.endpoints import open_listening_fd
from replbroker.transports.pausable_listeners import PausablePortListener


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "*"])
def test_a_listener_is_held_however_its_address_is_written(host: str) -> None:
    fd = open_listening_fd(f"tcp://{host}:0")
    assert fd >= 0
    listener = PausablePortListener(fd)
    with socket.socket(fileno=fd) as end:
        place = ("::1" if host == "[::1]" else "127.0.0.1", end.getsockname()[1])
        listener.pause()
        with pytest.raises(TimeoutError):
            socket.create_connection(place, timeout=0.2)
        listener.resume()
        socket.create_connection(place, timeout=5).close()
    listener.close()


def test_a_network_interface_is_left_to_zeromq() -> None:
    assert open_listening_fd("tcp://lo:0") == -1
