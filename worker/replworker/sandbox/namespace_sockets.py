"""Listening sockets inside a sandbox's network namespace, opened by a process that has entered it as its owner.

Every IPv4 address becomes local there, so a connection to any of them on a port that is listened on reaches the egress
proxy, which knows it by its destination. The namespace has no other interface than loopback.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from replworker.egress.listeners import OWN_ADDRESS, PREFIX_BITS, Listener
from replworker.sandbox import mounts

IP_PKTINFO = 8
NS_GET_USERNS = 0xB701
_BACKLOG = 128
_LOOPBACK = 1  # index of the interface
_NEW_ADDRESS, _NEW_ROUTE, _ERROR = 20, 24, 2
_REQUEST_ACK_CREATE = 0x1 | 0x4 | 0x400
_LOCAL_TABLE, _LOCAL_TYPE, _HOST_SCOPE, _BOOT_PROTOCOL = 255, 2, 254, 3
_ADDRESS, _LOCAL, _OUT_INTERFACE = 1, 2, 4


def open_listeners(namespace: int, wanted: Sequence[Listener]) -> list[int]:
    """Enter a network namespace for good, and open these sockets in it.

    The caller has entered the user namespace that owns it.

    Raises:
        OSError: the namespace cannot be entered, or a socket cannot be opened
    """
    mounts.enter(namespace)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        address = socket.inet_aton(OWN_ADDRESS)
        head = struct.pack("=BBBBI", socket.AF_INET, PREFIX_BITS, 0, 0, _LOOPBACK)
        _request(netlink, _NEW_ADDRESS, head + _attribute(_LOCAL, address) + _attribute(_ADDRESS, address))
        route = struct.pack(
            "=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, _BOOT_PROTOCOL, _HOST_SCOPE, _LOCAL_TYPE, 0
        )
        _request(netlink, _NEW_ROUTE, route + _attribute(_OUT_INTERFACE, struct.pack("=I", _LOOPBACK)))
    return [_open(each) for each in wanted]


def owner_of(namespace: int) -> int:
    """Return a descriptor of the user namespace that owns a namespace."""
    return fcntl.ioctl(namespace, NS_GET_USERNS)


def _open(wanted: Listener) -> int:
    kind = socket.SOCK_STREAM if wanted.kind == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as opened:
        if wanted.kind == "tcp":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            opened.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)  # the answer's source is the query's target
        opened.bind((wanted.address, wanted.port))
        if wanted.kind == "tcp":
            opened.listen(_BACKLOG)
        return opened.detach()


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data


def _request(netlink: socket.socket, kind: int, body: bytes) -> None:
    """Send a request and wait for its acknowledgement (rtnetlink(7)). The kernel answers at once."""
    netlink.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_ACK_CREATE, 1, 0) + body)
    answer = netlink.recv(4096)
    _, got, _, _, _, error = struct.unpack_from("=IHHIIi", answer)
    if got != _ERROR or error:
        raise OSError(-error, f"the session's network: {os.strerror(-error)}")
