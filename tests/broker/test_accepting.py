"""TCP listeners that can be held: see replbroker.accepting."""

from __future__ import annotations

import socket

import pytest

from replbroker.accepting import PortListener
from replbroker.endpoints import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "*"])
def test_a_listener_is_held_however_its_address_is_written(host: str) -> None:
    fd = listening(f"tcp://{host}:0")
    assert fd >= 0
    listener = PortListener(fd)
    with socket.socket(fileno=fd) as end:
        place = ("::1" if host == "[::1]" else "127.0.0.1", end.getsockname()[1])
        listener.stop()
        with pytest.raises(TimeoutError):
            socket.create_connection(place, timeout=0.2)
        listener.resume()
        socket.create_connection(place, timeout=5).close()
    listener.close()


def test_a_network_interface_is_left_to_zeromq() -> None:
    assert listening("tcp://lo:0") == -1
