"""The user at the other end of a socket, as far as the kernel vouches for one."""

from __future__ import annotations

import socket
import struct
from typing import Any

from replbroker.transports import sock_diag
from replwire.identities import ANONYMOUS

_SO_PEERGROUPS = 59  # Linux 4.13; the standard library has no name for it
_MAX_GROUPS_BYTES = 1024  # the kernel passes no more
_MAPPED = "::ffff:"
_LOOPBACK = ("127.", "::1", "::ffff:127.")
_TABLES: dict[int, str] = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


def peer_identity(sock: socket.socket) -> str:
    """Return `uid:N` for a process on this machine, else `anyone`."""
    try:
        if sock.family == socket.AF_UNIX:
            return f"uid:{peer_credentials(sock)[1]}"
        local, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # closed already
        return ANONYMOUS
    if not peer[0].startswith(_LOOPBACK):
        return ANONYMOUS
    uid = _peer_uid(peer, local)
    return ANONYMOUS if uid is None else f"uid:{uid}"


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected to a Unix socket."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def peer_groups(sock: socket.socket) -> tuple[int, ...]:
    """Return the groups of the process that connected to a Unix socket, its primary group first.

    They are empty for other sockets, and where the kernel reports none, or more than fit.
    """
    try:
        if sock.family != socket.AF_UNIX:
            return ()
        found = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS_BYTES)
        return peer_credentials(sock)[2], *struct.unpack(f"={len(found) // 4}I", found)
    except OSError:
        return ()


def _peer_uid(peer: tuple[Any, ...], local: tuple[Any, ...]) -> int | None:
    """Return the uid of the process at the other end of a loopback connection."""
    try:
        return sock_diag.socket_owner((peer[0], peer[1]), (local[0], local[1]))
    except OSError:  # a kernel or a container without sock_diag
        return _peer_uid_from_proc(peer, local)


def _peer_uid_from_proc(peer: tuple[Any, ...], local: tuple[Any, ...]) -> int | None:
    """Look the uid up in the kernel's tables of connections.

    A socket that no process has open any more has no inode, and the uid in its row is 0 whoever had it. An IPv6 socket
    that speaks IPv4 is in another table than its peer.
    """
    plain = [(str(end[0]).removeprefix(_MAPPED), end[1]) for end in (peer, local)]
    ways = [(socket.AF_INET6, plain)] if ":" in plain[0][0] else [
        (socket.AF_INET, plain), (socket.AF_INET6, [(_MAPPED + host, port) for host, port in plain])
    ]  # fmt: skip
    for family, ends in ways:
        wanted = [_proc_net_address(family, host, port) for host, port in ends]
        try:
            with open(_TABLES[family]) as table:
                for row in table:
                    fields = row.split()
                    if fields[1:3] == wanted:
                        return int(fields[7]) if fields[9] != "0" else None
        except (OSError, ValueError, IndexError):
            continue
    return None


def _proc_net_address(family: int, host: str, port: int) -> str:
    """Return an address as /proc/net/tcp writes it: words in the machine's byte order, in hex."""
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
