"""Lists of hosts: what an entry means, what it does not, and which addresses are public."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.network import (
    NetworkRules,
    check_address,
    check_host,
    check_lists,
    find_uncovered,
    is_public,
    normalize_host,
    parse_patterns,
)

LISTED = NetworkRules(
    allowed_hosts=["pypi.org", "*.corp.test:443", "db.test:5432", "93.184.216.34:22", "@git"],
    denied_hosts=["evil.corp.test", "github.com:80"],
)


@pytest.mark.parametrize(
    ("name", "port", "allowed"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, True),
        ("pypi.org", 22, False),
        ("files.pypi.org", 443, False),
        ("a.corp.test", 443, True),
        ("a.b.corp.test", 443, True),
        ("corp.test", 443, False),
        ("acorp.test", 443, False),
        ("a.corp.test", 80, False),
        ("evil.corp.test", 443, False),
        ("db.test", 5432, True),
        ("db.test", 443, False),
        ("93.184.216.34", 22, True),
        ("93.184.216.34", 443, False),
        ("github.com", 443, True),
        ("github.com", 80, False),
    ],
)
def test_an_entry_means_its_name_and_ports_alone(name: str, port: int, allowed: bool) -> None:
    verdict = check_host(LISTED, name, port)
    assert verdict.allowed is allowed
    assert bool(verdict.reason) is not allowed


def test_a_star_means_every_name_and_no_address() -> None:
    everything = NetworkRules(allowed_hosts=["*"])
    assert check_host(everything, "example.com", 443).allowed
    assert not check_host(everything, "93.184.216.34", 443).allowed


def test_a_name_that_is_denied_on_one_port_is_still_looked_up() -> None:
    assert check_host(LISTED, "github.com", None).allowed
    assert not check_host(LISTED, "evil.corp.test", None).allowed


@pytest.mark.parametrize(
    "entry",
    [
        *("", "*.", "*.*", "a.*", "**.x", "http://pypi.org", "pypi.org/", "pypi.org:", "pypi.org:0", "pypi.org:65536"),
        *("pypi.org:80:81", "a b", "-", "@nothing", "[::1]", "::1", "127.0.0.1", "0.0.0.0", "127.1"),
        *(
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "010.0.0.1",
            "0x7f000001",
            "pypi.org\n",
            "é.fr",
            "*.example.com:8080",
        ),
    ],
)
def test_what_is_no_entry_is_an_error_that_quotes_it(entry: str) -> None:
    with pytest.raises(ValueError, match=r"^allowed-hosts: "):
        check_lists([entry], [], [], [])


@pytest.mark.parametrize(
    "entry", ["a=b", "a", "=1.2.3.4", "a=1.2.3.4:0", "a=1.2.3", "a=[::1", "a=::1:x", "a b=1.2.3.4"]
)
def test_what_is_no_fixed_address_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match=r"^host-addresses: "):
        check_lists([], [], [], [entry])


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        (["pypi.org"], None),
        (["pypi.org:443"], None),
        (["pypi.org:22"], "pypi.org:22"),
        (["x.corp.test:443", "*.x.corp.test:443", "*.corp.test:443"], None),
        (["*.corp.test"], "*.corp.test"),
        (["corp.test:443"], "corp.test:443"),
        (["*"], "*"),
        (["pypi.org", "*.pypi.org"], "*.pypi.org"),
        (["@git"], None),
        (["@python"], "@python"),
    ],
)
def test_a_shorter_list_is_covered_and_a_longer_one_is_not(wanted: list[str], first: str | None) -> None:
    assert find_uncovered(LISTED.allowed_hosts, wanted) == first


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "0.0.0.0", "169.254.169.254", "100.64.0.1"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fc00::1"),
        *("ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "64:ff9b::7f00:1", "2002:a00:1::"),
        *("::10.0.0.1", "fd00:ec2::254", "2001:db8::1"),
    ],
)
def test_no_private_address_is_public_in_any_form(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert not is_public(found)
    assert not check_address(NetworkRules(), "x.test", found).allowed


def test_a_network_that_is_named_may_be_led_to_in_every_form() -> None:
    rules = NetworkRules(private_networks=["10.0.0.0/8"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "8.8.8.8", "2606:4700::1111"):
        assert check_address(rules, "x.test", ipaddress.ip_address(address)).allowed
    refused = check_address(rules, "mirror.corp", ipaddress.ip_address("192.168.1.1"))
    assert refused.reason == (
        "mirror.corp leads to 192.168.1.1, which is no public address: name its network in sandbox.private-networks"
    )


@given(st.text(max_size=300))
def test_any_text_is_a_name_in_its_one_form_or_none(text: str) -> None:
    name = normalize_host(text)
    assert name is None or (normalize_host(name) == name and name.isascii() and not set(name) & set("*:/@\0 \n"))


@given(st.text(alphabet="abc.*:0123456789@-", max_size=40))
def test_any_entry_is_parsed_or_refused(text: str) -> None:
    try:
        patterns = parse_patterns([text])
    except ValueError:
        return
    assert all(pattern.covers(pattern) for pattern in patterns)
    assert find_uncovered([text], [text]) is None
