"""Settings and receiving that both ROUTER sockets share."""

from __future__ import annotations

import zmq

ZAP_DOMAIN = b"replctl"
# As plain numbers: pyzmq's are enums, whose `|` and `&` run more Python than the call they are made for.
NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


def create_router(context: zmq.Context[zmq.Socket[bytes]], max_bytes: int, hwm: int) -> zmq.Socket[bytes]:
    """Create a ROUTER socket that is not bound yet.

    Args:
        context: The socket's context.
        max_bytes: Bound on one frame, in bytes.
        hwm: High-water mark: messages that libzmq holds for one peer, 0 for any number.
    """
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.router_mandatory = True
    socket.router_handover = False
    socket.maxmsgsize = max_bytes
    socket.sndhwm = hwm
    socket.rcvhwm = 0 if hwm == 0 else 1000
    socket.zap_domain = ZAP_DOMAIN  # without a domain libzmq would deliver raw garbage as messages
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
    return socket


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message waits; an exception from receiving costs three times as much."""
    return bool(socket.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator]


def receive_message(socket: zmq.Socket[bytes]) -> tuple[bytes, zmq.Frame, bool]:
    """Receive the waiting message without copying it.

    Returns:
        Sender, last frame, and whether that is the only one. The frame knows the connection it came by.

    Raises:
        zmq.Again: No message waits.
    """
    sender = socket.recv(NOBLOCK)
    frame = socket.recv(NOBLOCK, copy=False)
    if not frame.more:
        return sender, frame, True
    while frame.more:
        frame = socket.recv(NOBLOCK, copy=False)
    return sender, frame, False
