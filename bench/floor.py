"""The floor: a message to an echo and back through `zmq.proxy`, the broker that libzmq has in C, over ipc.

Same road as an eval's: caller, something in the middle, worker, and back. Nothing decides, runs or checks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import zmq

from bench import procs

MESSAGE = b"x" * 100
_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class EchoFloor:
    """A proxy with echo workers behind it, and a caller's socket."""

    endpoint: str
    pids: list[int]
    socket: zmq.Socket[bytes]

    def trip(self) -> bytes:
        """One message there and back."""
        self.socket.send(MESSAGE)
        return self.socket.recv()


@contextmanager
def floor(workers: int = 1) -> Iterator[EchoFloor]:
    """Proxy and echo workers, each a process of its own."""
    with procs.temporary_directory() as path:
        front, back = f"ipc://{path}/front", f"ipc://{path}/back"
        running = [procs.start_module("floor", "proxy", front, back)]
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            procs.read_line(running[0])
            running += [procs.start_module("floor", "echo", back) for _ in range(workers)]
            for process in running[1:]:
                procs.read_line(process)
            yield EchoFloor(front, [process.pid for process in running], dealer(context, front))
        finally:
            for process in running:
                procs.stop(process)
            context.destroy(linger=0)


def dealer(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """Return a caller's socket; every wait on it has a timeout."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.sndtimeo = socket.rcvtimeo = _TIMEOUT_MS
    socket.connect(endpoint)
    return socket


def _proxy(front: str, back: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    callers, workers = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (callers, workers):
        socket.sndhwm = socket.rcvhwm = 0
    callers.bind(front)
    workers.bind(back)
    print("ready", flush=True)
    zmq.proxy(callers, workers)


def _echo(back: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.sndhwm = socket.rcvhwm = 0
    socket.connect(back)
    print("ready", flush=True)
    while True:
        socket.send_multipart(socket.recv_multipart(copy=True))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        if sys.argv[1] == "proxy":
            _proxy(*sys.argv[2:])
        else:
            _echo(sys.argv[2])
