"""Binds the broker's ZeroMQ sockets to its endpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import zmq

from replbroker.endpoints import BrokerEndpoint, StartError, is_loopback, open_listening_fd
from replbroker.transports.pausable_listeners import PausableListener, PausablePathListener, PausablePortListener
from replwire.keys import InvalidKey, KeyStore
from replwire.paths import runtime_dir


def configure_curve(socket: zmq.Socket[bytes], keys: KeyStore, url: str) -> None:
    """Require client keys at the endpoint that is bound next, where they are needed.

    TCP clients need keys once the broker has a key itself, and the broker must have one beyond loopback.

    Raises:
        StartError: There is no usable key where one is required.
    """
    try:
        pair = keys.server()
    except InvalidKey as error:
        raise StartError(str(error)) from None
    is_curve = url.startswith("tcp://") and pair is not None
    socket.setsockopt(zmq.CURVE_SERVER, int(is_curve))
    if is_curve and pair is not None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    elif url.startswith("tcp://") and not is_loopback(url):
        raise StartError(f"{url}: clients beyond loopback need keys; create one with `replctl keys new NAME`")


def bind(socket: zmq.Socket[bytes], url: str, fd: int = -1) -> int:
    """Listen at an endpoint.

    Args:
        socket: The socket to bind.
        url: Address of the endpoint.
        fd: A descriptor that listens there already, or -1.

    Returns:
        The listening descriptor, or -1 where libzmq made it.

    Raises:
        StartError: The endpoint cannot be bound.
    """
    try:
        fd = fd if fd >= 0 else open_listening_fd(url)
        socket.setsockopt(zmq.USE_FD, fd)
        socket.bind(url)
        return fd
    except (OSError, zmq.ZMQError) as error:
        raise StartError(f"cannot listen on {url}: {error.strerror}") from None


def pausable_listeners(endpoint: BrokerEndpoint, fd: int, state_dir: Path) -> Iterator[PausableListener]:
    """Yield the endpoint's listener if it can be paused; a path has to be in a directory that sessions cannot see."""
    if endpoint.url.startswith("tcp://") and fd >= 0:
        yield PausablePortListener(fd)
    elif endpoint.path is not None:
        hidden = {state_dir, Path(runtime_dir(os.environ, os.getuid()))}
        if hidden & {*endpoint.path.parents}:
            yield PausablePathListener(endpoint.path)
