"""Network rules of a session: patterns of hosts and ports, and what they allow. No I/O."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

MAX_HOSTS = 256
PRESETS = {
    "@python": ("pypi.org", "files.pythonhosted.org"),
    "@node": ("registry.npmjs.org",),
    "@git": ("github.com", "codeload.github.com", "raw.githubusercontent.com", "gitlab.com", "bitbucket.org"),
}
WEB_PORTS = frozenset({80, 443})  # of entries that name none
FIRST_FREE_PORT = 1024  # lower ones are never a session's own
# Addresses that names have inside sessions: reserved for benchmarks of networks (RFC 2544), so nobody's.
VIRTUAL_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
_ANY_PORT = range(1, 65536)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as last label such a name is an address: 127.1, 0x7f.1

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class HostPattern(NamedTuple):
    """One entry of a list of hosts.

    Attributes:
        name: Name or IPv4 address; of a wildcard, what follows `*.`, and empty for `*`.
        wildcard: Whether every name below it is meant, and not the name itself.
        ports: The ports.
    """

    name: str
    wildcard: bool
    ports: Collection[int]

    def matches(self, name: str) -> bool:
        """Return whether a normalised name is meant. An address is meant only by itself."""
        if not self.wildcard:
            return name == self.name
        return not is_address(name) and (not self.name or name.endswith(f".{self.name}"))

    def covers(self, other: HostPattern) -> bool:
        """Return whether everything that another entry means is meant by this one too."""
        if not all(port in self.ports for port in other.ports):
            return False
        if other.wildcard:
            return self.wildcard and (not self.name or f".{other.name}".endswith(f".{self.name}"))
        return self.matches(other.name)


class Verdict(NamedTuple):
    """Decision on a host and port; `reason` says why it is refused and is empty otherwise."""

    allowed: bool
    reason: str = ""


class NetworkRules(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Hosts that one session may reach, with `network = list`.

    Attributes:
        allowed_hosts: Entries of hosts that it may reach.
        denied_hosts: Entries that it may not, whatever the others say. Without a port they mean every port.
        private_networks: Networks, as CIDR, that allowed names may lead to although they are not public.
        host_addresses: `NAME=ADDRESS[:PORT]`: where names lead, instead of what the resolver says.
        upstream_proxy: `http://HOST:PORT` of a proxy that all connections go through; empty: none.
        max_connections: Connections at once.
        max_bytes: Bytes sent and received in sum.
        origin: The list that `allowed_hosts` is, for messages.
        may_grow: Whether `allow-hosts` may add to it.
    """

    allowed_hosts: list[str] = []
    denied_hosts: list[str] = []
    private_networks: list[str] = []
    host_addresses: list[str] = []
    upstream_proxy: str = ""
    max_connections: int = 256
    max_bytes: int = 1 << 40
    origin: str = "sandbox.allowed-hosts"
    may_grow: bool = False


TrafficOutcome = Literal["reached", "refused", "failed"]


class TrafficRecord(msgspec.Struct, frozen=True):
    """Connections of a session to one host and port that have ended, or never began, in a moment.

    Attributes:
        session: Id of the session.
        host: Name or IPv4 address.
        port: Port; 0 if the name was refused when it was looked up.
        outcome: `reached`, `refused` by a setting, or `failed` on the way.
        reason: The reason, unless it was reached.
        count: Connections.
        sent: Bytes to the host.
        received: Bytes from it.
    """

    session: str
    host: str
    port: int
    outcome: TrafficOutcome
    reason: str = ""
    count: int = 1
    sent: int = 0
    received: int = 0


class HostLists(NamedTuple):
    """The lists of the settings that a running broker can reload."""

    allowed_hosts: Sequence[str] = ()
    denied_hosts: Sequence[str] = ()
    private_networks: Sequence[str] = ()
    host_addresses: Sequence[str] = ()


def normalize_host(text: str) -> str | None:
    """Return a name in lower case without a final dot, an IPv4 address as it is, or None for anything else.

    Spellings of addresses that resolvers accept (`127.1`, `0x7f000001`, `2130706433`, `010.0.0.1`) are no names.
    """
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not name:
        return None
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        return None
    if _NUMBER.fullmatch(labels[-1]):
        return name if is_address(name) else None
    return name


def is_address(name: str) -> bool:
    """Return whether a name is an IPv4 address in its usual form."""
    try:
        return str(ipaddress.IPv4Address(name)) == name
    except ValueError:
        return False


def parse_patterns(entries: Iterable[str], *, every_port: bool = False) -> tuple[HostPattern, ...]:
    """Parse a list of hosts: `NAME`, `*.NAME`, `*`, an IPv4 address, each with `:PORT`, and presets such as `@python`.

    Args:
        entries: The list.
        every_port: Entries without a port mean every port, instead of 80 and 443.

    Raises:
        ValueError: an entry is invalid; the message quotes it
    """
    found: list[HostPattern] = []
    for entry in entries:
        if entry.startswith("@"):
            if entry not in PRESETS:
                raise ValueError(f"{entry!r} is no preset: {', '.join(PRESETS)}")
            found += parse_patterns(PRESETS[entry], every_port=every_port)
        else:
            found.append(_parse_pattern(entry, _ANY_PORT if every_port else WEB_PORTS))
    return tuple(found)


def _parse_pattern(entry: str, ports: Collection[int]) -> HostPattern:
    host, colon, port = entry.partition(":")
    if colon:
        if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
            raise ValueError(f"{entry!r}: a port is a number from 1 to 65535")
        ports = frozenset({int(port)})
    wildcard = host == "*" or host.startswith("*.")
    name = "" if host == "*" else host.removeprefix("*.")
    normal = "" if host == "*" else normalize_host(name)
    if normal is None or (wildcard and is_address(name)):
        raise ValueError(f"{entry!r} is not NAME, *.NAME, an IPv4 address or a preset, with or without :PORT")
    if is_address(normal) and not _is_assignable(ipaddress.IPv4Address(normal)):
        raise ValueError(f"{entry!r}: inside a session this address is its own; give a name by sandbox.host-addresses")
    return HostPattern(normal, wildcard, ports)


def _is_assignable(address: ipaddress.IPv4Address) -> bool:
    own = address.is_loopback or address.is_unspecified or address.is_multicast or address in VIRTUAL_NETWORK
    return not own and address != ipaddress.IPv4Address("255.255.255.255")


def parse_networks(entries: Iterable[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Parse networks as CIDR.

    Raises:
        ValueError: an entry is invalid
    """
    return tuple(ipaddress.ip_network(entry) for entry in entries)


def parse_host_address(entry: str) -> tuple[str, str, int | None]:
    """Parse `NAME=ADDRESS[:PORT]`; IPv6 addresses with a port are in brackets.

    Raises:
        ValueError: the entry is invalid
    """
    name, _, target = entry.partition("=")
    found = re.fullmatch(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?", target)
    address, port = (found["six"] or found["four"], found["port"]) if found else (target, None)
    normal = normalize_host(name.removeprefix("*."))
    if normal is None or (port is not None and not 0 < int(port) < 65536):
        raise ValueError(f"{entry!r} is not NAME=ADDRESS or NAME=ADDRESS:PORT")
    ipaddress.ip_address(address)
    return (f"*.{normal}" if name.startswith("*.") else normal), address, None if port is None else int(port)


def check_lists(allowed: list[str], denied: list[str], private: list[str], addresses: list[str]) -> None:
    """Check lists of the settings or of a request.

    Raises:
        ValueError: an entry is invalid; the message begins with the name of its list
    """
    for name, parse, entries in (
        ("allowed-hosts", parse_patterns, allowed),
        ("denied-hosts", parse_patterns, denied),
        ("private-networks", parse_networks, private),
    ):
        try:
            parse(entries)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for entry in addresses:
        try:
            parse_host_address(entry)
        except ValueError as error:
            raise ValueError(f"host-addresses: {error}") from None
    for pattern in _patterns(tuple(allowed)):
        if pattern.wildcard and not all(port < FIRST_FREE_PORT for port in pattern.ports):
            raise ValueError(f"allowed-hosts: *.{pattern.name}: a wildcard may name ports below {FIRST_FREE_PORT} only")


def find_uncovered(allowed: list[str], wanted: list[str]) -> str | None:
    """Return the first wanted entry that the allowed ones do not cover, or None."""
    has = _patterns(tuple(allowed))
    for entry in wanted:
        if not all(any(each.covers(pattern) for each in has) for pattern in _patterns((entry,))):
            return entry
    return None


def denied_entry(denied: list[str], wanted: list[str]) -> str | None:
    """Return the first wanted entry that the denied ones cover, so that it would never be reached, or None."""
    has = _denied(tuple(denied))
    for entry in wanted:
        if all(any(each.covers(pattern) for each in has) for pattern in _patterns((entry,))):
            return entry
    return None


def check_host(rules: NetworkRules, name: str, port: int | None) -> Verdict:
    """Decide whether a session may reach a host; with `port` None, whether it may on any port."""
    where = name if port is None else f"{name}:{port}"
    for pattern in _denied(tuple(rules.denied_hosts)):
        if pattern.matches(name) and (port in pattern.ports or (port is None and pattern.ports == _ANY_PORT)):
            return Verdict(False, f"{where} was refused: sandbox.denied-hosts names it")
    named = [pattern for pattern in _patterns(tuple(rules.allowed_hosts)) if pattern.matches(name)]
    if not named:
        hint = "; allow-hosts may add it" if rules.may_grow else ""
        return Verdict(False, f"{where} was refused: it is not in {rules.origin}{hint}")
    if port is not None and not any(port in pattern.ports for pattern in named):
        ports = sorted({each for pattern in named for each in pattern.ports})
        text = ", ".join(map(str, ports[:10]))
        return Verdict(False, f"{where} was refused: {rules.origin} names it for port{'s'[: len(ports) > 1]} {text}")
    return Verdict(True)


def check_address(rules: NetworkRules, name: str, address: Address) -> Verdict:
    """Decide whether an allowed host may lead to this address."""
    real = _embedded(address)
    networks = _networks(tuple(rules.private_networks))
    if is_public(address) or any(each in network for network in networks for each in {address, real}):
        return Verdict(True)
    return Verdict(
        False,
        f"{name} leads to {real}, which is no public address: name its network in sandbox.private-networks",
    )


def is_public(address: Address) -> bool:
    """Return whether an address is an ordinary one on the internet, also when it embeds an IPv4 address."""
    real = _embedded(address)
    return all(each.is_global and not each.is_multicast and not each.is_reserved for each in {address, real})


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def _embedded(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address of the kinds that a gateway or kernel translates, or itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _NAT64 or (address in _COMPATIBLE and number > 1):
        return ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        return ipaddress.IPv4Address(number >> 80 & 0xFFFF_FFFF)
    return address


@lru_cache(256)
def _patterns(entries: tuple[str, ...]) -> tuple[HostPattern, ...]:
    return parse_patterns(entries)


@lru_cache(256)
def _denied(entries: tuple[str, ...]) -> tuple[HostPattern, ...]:
    return parse_patterns(entries, every_port=True)


@lru_cache(64)
def _networks(entries: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return parse_networks(entries)


def allowed_patterns(rules: NetworkRules) -> tuple[HostPattern, ...]:
    """Return the parsed entries of hosts that a session may reach."""
    return _patterns(tuple(rules.allowed_hosts))
