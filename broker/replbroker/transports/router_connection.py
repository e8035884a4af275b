"""One ZeroMQ connection as libzmq reports it: its socket, and the properties of its messages."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import NamedTuple

import zmq

from replbroker.transports.peer_identity import peer_groups, peer_identity
from replwire.identities import ANONYMOUS

_CREDENTIALS = re.compile(r"localhost:(\d+):\d+:\d+\Z")  # uid, gid and pid of an ipc:// peer, as libzmq writes them


@dataclass(slots=True)
class RouterConnection:
    """A connection that libzmq has accepted.

    Attributes:
        peer: Name of the connection for the broker.
        number: Position in the sequence of accepts and handshakes.
        fd: libzmq's descriptor.
        inode: Inode of the socket; the descriptor may be another connection's by the time it is used.
        identity: The user at the other end.
        handshake: What libzmq reports with each message; no client chooses it.
        name: Name of the client's key.
        routing_id: libzmq's address of the connection.
        is_rejected: Whether the connection broke the rules and was told so.
        is_muted: Whether its messages are ignored.
    """

    peer: bytes
    number: int
    fd: int
    inode: int
    identity: str
    handshake: str = ""
    name: str = ""
    routing_id: bytes = b""
    is_rejected: bool = False
    is_muted: bool = False


class SocketOwner(NamedTuple):
    """The socket of a connection, and the user at its other end."""

    inode: int = 0
    identity: str = ANONYMOUS
    groups: tuple[int, ...] = ()


def read_socket_owner(fd: int) -> SocketOwner:
    """Return the owner of a connection that libzmq has just accepted."""
    try:
        with socket.socket(fileno=os.dup(fd)) as end:
            return SocketOwner(os.fstat(end.fileno()).st_ino, peer_identity(end), peer_groups(end))
    except OSError:  # closed already, which the next monitor event reports
        return SocketOwner()


def handshake_of(frame: zmq.Frame) -> str:
    """Return what the ZAP handler wrote at the connection's handshake; empty without one."""
    try:
        return str(frame.get("User-Id"))
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""


def identity_at_handshake(frame: zmq.Frame) -> str:
    """Return the user that libzmq saw at the handshake of an ipc:// peer; ANONYMOUS for other transports."""
    credentials = _CREDENTIALS.match(str(frame.get("Peer-Address")))
    return ANONYMOUS if credentials is None else f"uid:{credentials[1]}"


def has_custom_routing_id(frame: zmq.Frame) -> bool:
    """Return whether the client that sent this frame has chosen its routing id."""
    try:
        return frame.get("Identity") != ""
    except UnicodeDecodeError:
        return True
    except zmq.ZMQError:  # it has chosen none
        return False
