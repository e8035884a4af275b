"""Many clients in one process, each with a connection, a session and one eval under way.

`python -m bench.many lines|zmq TARGET SESSION...`: says `ready`, runs for as many seconds as each line on its stdin
says, and answers with how long each eval took, in whole microseconds, as a line of JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time

import zmq

from bench import ours
from bench.floor import dealer

_WAIT_MS = 10_000
_CHUNK = 1 << 16


class DealerConnection:
    """A ZeroMQ connection."""

    def __init__(self, target: str) -> None:
        self.socket = dealer(zmq.Context.instance(), target)

    def send(self, message: bytes) -> None:
        """Send a request."""
        self.socket.send(message)

    def receive(self) -> list[bytes]:
        """Whole messages that have come, at least one when the poller said so."""
        return [self.socket.recv()]


class LineConnection:
    """A TCP connection with a message a line."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition("://")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._begun = b""

    def send(self, message: bytes) -> None:
        """Send a request."""
        self.socket.sendall(message + b"\n")

    def receive(self) -> list[bytes]:
        """Whole messages that have come. Raises EOFError."""
        data = self.socket.recv(_CHUNK)
        if not data:
            raise EOFError("the broker closed the connection")
        *whole, self._begun = (self._begun + data).split(b"\n")
        return whole


class ClientGroup:
    """The clients, and what they wait for."""

    def __init__(self, kind: type[DealerConnection | LineConnection], target: str, sessions: list[str]) -> None:
        self._clients = [kind(target) for _ in sessions]
        self._evals = [
            ours.encode({"id": "e", "op": "eval", "session": session, "code": "1+1"}) for session in sessions
        ]
        self._poller = zmq.Poller()
        self._who: dict[object, int] = {}
        for number, client in enumerate(self._clients):
            self._poller.register(client.socket, zmq.POLLIN)
            self._who[client.socket if kind is DealerConnection else client.socket.fileno()] = number

    def run(self, seconds: float) -> list[int]:
        """Evals of all clients until the time is over, and then to their ends; microseconds of each."""
        clock = time.perf_counter
        began = [0.0] * len(self._clients)
        over = clock() + seconds
        took: list[int] = []
        running = 0
        for number, client in enumerate(self._clients):
            began[number] = clock()
            client.send(self._evals[number])
            running += 1
        while running:
            events = self._poller.poll(_WAIT_MS)
            if not events:
                raise TimeoutError("no answer came")
            for ready, _ in events:
                number = self._who[ready]
                client = self._clients[number]
                if not any(map(_is_done, client.receive())):
                    continue
                now = clock()
                took.append(int((now - began[number]) * 1e6))
                if now < over:
                    began[number] = clock()
                    client.send(self._evals[number])
                else:
                    running -= 1
        return took


def _is_done(message: bytes) -> bool:
    text = ours.decode(message)
    if text.status is not None and "error" in text.status:
        raise ours.BenchRequestRefused(f"{text.status}: {text.err}")
    return text.status is not None and "done" in text.status


def main(kind: str, target: str, *sessions: str) -> None:
    """Be the process."""
    crowd = ClientGroup(LineConnection if kind == "lines" else DealerConnection, target, list(sessions))
    print("ready", flush=True)
    while seconds := sys.stdin.readline():
        print(json.dumps(crowd.run(float(seconds))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
