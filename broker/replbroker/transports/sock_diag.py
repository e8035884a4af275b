"""Lookup of the user of a local TCP socket by its addresses: sock_diag(7).

Unlike reading /proc/net/tcp, it takes the same time however many connections there are.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_REQUEST = struct.Struct("=BBBBI")  # inet_diag_req_v2, up to the id
_ID = struct.Struct("!HH16s16s")  # inet_diag_sockid: the ports, and the addresses
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface
_RESPONSE = struct.Struct("=BBBB")  # inet_diag_msg, up to the id
_TAIL = struct.Struct("=IIIII")  # after it: expires, rqueue, wqueue, uid, inode
_ID_BYTES = _ID.size + len(_NO_COOKIE)
_ESTABLISHED, _CLOSE_WAIT, _FIN_WAIT = 1, 8, (4, 5)
_OPEN_STATES = (_ESTABLISHED, _CLOSE_WAIT, *_FIN_WAIT)
_TIMEOUT_S = 1.0  # the kernel answers before `send` returns


def socket_owner(end: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the uid of a TCP socket's user.

    Args:
        end: Host and port of the socket, which is on this machine.
        other: Host and port of its peer.

    Returns:
        The uid, or None when no process has the socket open.

    Raises:
        OSError: The kernel does not tell.
    """
    plain = [(_unmap(host), port) for host, port in (end, other)]
    family = socket.AF_INET if plain[0][0].version == 4 else socket.AF_INET6
    packed = [host.packed.ljust(16, b"\0") for host, _ in plain]
    ident = _ID.pack(plain[0][1], plain[1][1], *packed)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ident + _NO_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        answer = kernel.recv(4096)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:  # NLMSG_ERROR
        error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if error == 2:  # ENOENT: no such connection
            return None
        raise OSError(error, "sock_diag")
    _, state, _, _ = _RESPONSE.unpack_from(answer, _HEADER.size)
    at = _HEADER.size + _RESPONSE.size
    *_, uid, inode = _TAIL.unpack_from(answer, at + _ID_BYTES)
    ports = _ID.unpack_from(answer, at)[:2]
    if (
        state not in _OPEN_STATES or inode == 0 or ports != (plain[0][1], plain[1][1])
    ):  # or another socket that listens there by now
        return None
    return int(uid)


def _unmap(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address in its own family: an IPv6 socket may speak IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
