"""What both ROUTERs share: the settings that keep strangers' bytes out, and receiving without waiting."""

from __future__ import annotations

import zmq

ZAP_DOMAIN = b"replctl"
# As plain numbers: pyzmq's are enums, whose `|` and `&` run more python than the call they are made for.
NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


def create_router(context: zmq.Context[zmq.Socket[bytes]], max_bytes: int, hwm: int) -> zmq.Socket[bytes]:
    """A ROUTER that is not bound yet. Without a ZAP domain libzmq would hand raw garbage up as messages."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.router_mandatory = True
    socket.router_handover = False
    socket.maxmsgsize = max_bytes
    socket.sndhwm = hwm
    socket.rcvhwm = 0 if hwm == 0 else 1000
    socket.zap_domain = ZAP_DOMAIN
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
    return socket


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits. Asked before receiving: an exception for 'no' costs three times as much."""
    return bool(socket.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator]


def receive_message(socket: zmq.Socket[bytes]) -> tuple[bytes, zmq.Frame, bool]:
    """The message that waits: sender, its last frame, which knows the connection it came by, and whether it is the only
    one. Nothing is copied yet. Raises zmq.Again."""
    sender = socket.recv(NOBLOCK)
    frame = socket.recv(NOBLOCK, copy=False)
    if not frame.more:
        return sender, frame, True
    while frame.more:
        frame = socket.recv(NOBLOCK, copy=False)
    return sender, frame, False
