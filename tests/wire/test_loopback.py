from __future__ import annotations

import pytest

from replbroker.endpoints import is_loopback
from replwire.loopback import is_loopback_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_addresses_of_this_machine_alone_are_loopback(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    ["localhost.example.org", "127.example.org", "127.0.0.1.example.org", "[::10]", "10.0.0.1", "*", "0.0.0.0", ""],
)
def test_a_name_that_only_begins_like_loopback_is_not(host: str) -> None:
    assert not is_loopback_host(host)
    assert not is_loopback(f"tcp://{host}:7777")
