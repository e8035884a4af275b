"""Who stands at the other end of a socket, as far as the kernel can vouch for it."""

from __future__ import annotations

import socket
import struct

NOBODY = "anyone"  # a connection that the kernel knows no user of
_LOOPBACK = {socket.AF_INET: ("127.",), socket.AF_INET6: ("::1", "::ffff:127.")}
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


def identity(sock: socket.socket) -> str:
    """`uid:N` for a process of this machine, else `anyone`."""
    try:
        if sock.family == socket.AF_UNIX:
            return f"uid:{credentials(sock)[1]}"
        local, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # gone already
        return NOBODY
    if not peer[0].startswith(_LOOPBACK.get(sock.family, ("none",))):
        return NOBODY
    uid = _owner(sock.family, peer, local)
    return NOBODY if uid is None else f"uid:{uid}"


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of the process that connected to a Unix socket."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def _owner(family: int, peer: tuple[object, ...], local: tuple[object, ...]) -> int | None:
    """Whose socket the other end of a loopback connection is: the kernel's table of connections has a user for each."""
    wanted = [_as_in_table(family, peer), _as_in_table(family, local)]
    try:
        with open(_TABLES[socket.AddressFamily(family)]) as table:
            for row in table:
                fields = row.split()
                if fields[1:3] == wanted:
                    return int(fields[7])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _as_in_table(family: int, address: tuple[object, ...]) -> str:
    """An address as /proc/net/tcp writes it: words in the machine's byte order, in hex."""
    packed = socket.inet_pton(family, str(address[0]))
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
