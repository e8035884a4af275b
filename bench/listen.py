"""Readers of events: `python -m bench.listen ENDPOINT CONNECTIONS SUBSCRIPTIONS [SESSION]`, so many in each connection.

It says `ready` when all are subscribed, and at each line on its stdin what it has heard since the last one, as JSON:
`events`, how many there are of each type; `missed`, the sum of what `bus/lagged` told; and `last`, milliseconds from
the line to the last event. It waits until half a second has brought none.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter

import msgspec
import zmq

from bench import ours
from bench.floor import dealer


class _BusEvent(msgspec.Struct):
    type: str
    missed: int = 0


class _EventMessage(msgspec.Struct):
    id: str
    event: _BusEvent | None = None
    status: list[str] | None = None


_decode = msgspec.json.Decoder(_EventMessage).decode
_QUIET_S = 0.5


class EventReaders:
    """All connections of one process."""

    def __init__(self, endpoint: str, connections: int, each: int, session: str | None) -> None:
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 4096)
        self._poller = zmq.Poller()
        self.events: Counter[str] = Counter()
        self.missed = 0
        for _ in range(connections):
            socket = dealer(context, endpoint)
            self._poller.register(socket, zmq.POLLIN)
            for number in range(each):
                asked = {"id": str(number), "op": "subscribe", "types": ["eval/"]}
                socket.send(ours.encode(asked if session is None else asked | {"session": session}))
            confirmed = 0
            while confirmed < each:
                result = _decode(socket.recv())
                if result.status is not None:
                    assert "subscribed" in result.status, result
                    confirmed += 1

    def read_events(self, seconds: float) -> bool:
        """Take in what has come; whether there was anything within so long."""
        ready = self._poller.poll(int(seconds * 1000))
        for socket, _ in ready:
            for _ in range(1000):
                try:
                    event = _decode(socket.recv(zmq.NOBLOCK)).event
                except zmq.Again:
                    break
                if event is not None:
                    self.events[event.type] += 1
                    self.missed += event.missed
        return bool(ready)


def main(endpoint: str, connections: str, each: str, session: str | None = None) -> None:
    """Be the process."""
    readers = EventReaders(endpoint, int(connections), int(each), session)
    print("ready", flush=True)
    while True:
        readers.read_events(0.05)
        if not select.select([0], [], [], 0)[0]:
            continue
        if not sys.stdin.readline():
            return
        began = last = time.perf_counter()
        while readers.read_events(_QUIET_S):
            last = time.perf_counter()
        results = {"events": dict(readers.events), "missed": readers.missed, "last": (last - began) * 1e3}
        print(json.dumps(results), flush=True)
        readers.events.clear()
        readers.missed = 0


if __name__ == "__main__":
    main(*sys.argv[1:])
