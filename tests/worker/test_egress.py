"""Parts of the egress proxy: DNS messages, requests to a proxy, names, sockets, records."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.network import VIRTUAL_NETWORK, NetworkRules
from replworker.egress import dns
from replworker.egress.handshake import BadRequest, ProxyRequest, parse_http, read_request
from replworker.egress.ledger import Ledger
from replworker.egress.listeners import Listener, plan_listeners
from replworker.egress.names import NameTable


def query(name: str, kind: int = dns.A, flags: int = 0x100) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 77, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def test_a_query_is_answered_with_its_question_and_an_address() -> None:
    parsed = dns.parse_query(query("pypi.org"))
    assert parsed is not None
    assert (parsed.name, parsed.type) == ("pypi.org", dns.A)
    answer = dns.build_answer(parsed, dns.NO_ERROR, "198.18.16.0")
    assert struct.unpack_from("!6H", answer) == (77, 0x8580, 1, 1, 0, 0)
    assert answer[12:].startswith(parsed.question)
    assert answer[-4:] == ipaddress.IPv4Address("198.18.16.0").packed


def test_a_name_that_is_not_there_has_no_address() -> None:
    parsed = dns.parse_query(query("evil.com", dns.AAAA))
    assert parsed is not None
    assert struct.unpack_from("!6H", dns.build_answer(parsed, dns.NO_SUCH_NAME))[1:4] == (0x8583, 1, 0)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x" * 11,
        query("a.b", flags=0x8100),
        query("a.b", flags=0x2900),
        query("a.b")[:-1],
        query("a.b")[:4] + b"\0\2" + query("a.b")[6:],
        struct.pack("!6H", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c" + struct.pack("!2H", 1, 1),
        b"x" * 5000,
    ],
)
def test_what_is_no_query_gets_no_answer(message: bytes) -> None:
    assert dns.parse_query(message) is None


@given(st.binary(max_size=600))
def test_any_bytes_are_a_query_or_none(data: bytes) -> None:
    for message in (data, query("a.test")[:12] + data):
        parsed = dns.parse_query(message)
        assert parsed is None or dns.build_answer(parsed, dns.NO_ERROR)


def read(data: bytes, chunk: int = 7) -> ProxyRequest:
    """Read a request that arrives in pieces."""
    rest = bytearray(data)

    async def receive(most: int) -> bytes:
        piece = bytes(rest[: min(most, chunk)])
        del rest[: len(piece)]
        return piece

    async def send(_: bytes) -> None:
        pass

    return asyncio.run(read_request(receive, send))


def test_connect_names_a_host_and_a_port() -> None:
    found = read(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n")
    assert (found.host, found.port, found.forward) == ("pypi.org", 443, b"")


def test_a_plain_request_is_passed_on_in_the_form_for_its_host() -> None:
    found = parse_http(
        b"GET http://x.test:81/a?b HTTP/1.1\r\nHost: x.test:81\r\nProxy-Auth: s\r\nConnection: a\r\n\r\nbody"
    )
    assert (found.host, found.port) == ("x.test", 81)
    assert found.forward == b"GET /a?b HTTP/1.1\r\nHost: x.test:81\r\nConnection: close\r\n\r\nbody"
    assert parse_http(b"GET http://x.test HTTP/1.1\r\n\r\n").forward.startswith(b"GET / HTTP/1.1\r\n")


def test_socks_names_a_host_and_a_port() -> None:
    found = read(b"\x05\x01\0\x05\x01\0\x03\x08pypi.org\x01\xbb")
    assert (found.host, found.port, found.socks) == ("pypi.org", 443, True)
    assert read(b"\x05\x01\0\x05\x01\0\x01\x08\x08\x04\x04\0\x35").host == "8.8.4.4"


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"CONNECT ", b"GET http://", b"\x05\x01\0", b"\x05\x01\0\x05\x01\0\x03"]),
)
def test_any_bytes_are_a_request_or_turned_away(data: bytes, start: bytes) -> None:
    try:
        found = read(start + data, 64)
    except BadRequest:
        return
    assert 0 <= found.port < 65536


def test_names_have_addresses_of_their_own_and_keep_them() -> None:
    table = NameTable({"db.test": "198.18.1.0"})
    first = table.address_of("a.test")
    assert ipaddress.ip_address(first) in VIRTUAL_NETWORK
    assert (table.address_of("a.test"), table.name_of(first)) == (first, "a.test")
    assert (table.address_of("db.test"), table.name_of("198.18.1.0")) == ("198.18.1.0", "db.test")
    assert table.address_of("b.test") != first


def test_a_table_of_names_is_bounded_and_forgets_the_one_that_was_used_longest_ago() -> None:
    table = NameTable({})
    first, second = table.address_of("first.test"), table.address_of("second.test")
    for number in range(4094):
        table.address_of(f"n{number}.test")
    table.address_of("first.test")
    taken = table.address_of("one-more.test")
    assert taken == second
    assert (table.name_of(first), table.name_of(second)) == ("first.test", "one-more.test")


def test_low_ports_are_bound_once_and_others_at_the_address_of_their_name() -> None:
    found = plan_listeners(NetworkRules(allowed_hosts=["a.test", "*.b.test:22", "db.test:5432", "10.1.2.3:8080"]))
    assert [(each.kind, each.port) for each in found if each.address == "0.0.0.0"] == [
        ("udp", 53),
        ("tcp", 53),
        ("tcp", 22),
        ("tcp", 80),
        ("tcp", 443),
    ]
    rest = [each for each in found if each.address != "0.0.0.0"]
    assert rest == [Listener("tcp", "198.18.1.0", 5432, "db.test"), Listener("tcp", "10.1.2.3", 8080, "10.1.2.3")]


def test_twenty_hosts_need_no_more_sockets_than_one() -> None:
    few = plan_listeners(NetworkRules(allowed_hosts=["a.test"]))
    assert plan_listeners(NetworkRules(allowed_hosts=[f"h{n}.test" for n in range(20)])) == few


@pytest.mark.parametrize("add", [lambda ledger, n: ledger.add("s", f"h{n}", 443, "refused", "no", 0, 0)])
def test_records_are_summed_and_bounded(add: Callable[[Ledger, int], None]) -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.add("s", "pypi.org", 443, "reached", "", 10, 20)
    (record,) = ledger.take(10)
    assert (record.count, record.sent, record.received) == (3, 30, 60)
    for number in range(5000):
        add(ledger, number)
    records = ledger.take(10_000)
    assert len(records) == 21
    assert sum(each.count for each in records) == 5000
    assert records[-1].host == "(others)"
    ledger.add("s", "again.test", 443, "refused", "no", 0, 0)
    assert ledger.take(10)[0].host == "again.test"


# Whoever has no secrets needs no TLS, which would be a tenth of the proxy's memory.
LOADED = """
import sys, types
from replworker.egress import process
def run_proxy(*_):
    import asyncio, replworker.egress.served_sandbox
    print("_ssl" in sys.modules, asyncio.sslproto.ssl is None, sys.modules.get("ssl", "importable"))
sys.modules["replworker.egress.proxy"] = types.SimpleNamespace(run_proxy=run_proxy)
process.serve(None, None, ())
"""


def test_a_proxy_without_secrets_has_no_tls_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "False True importable\n"
