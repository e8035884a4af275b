"""One agent at work: an eval, a rest, a ping, a rest. `python -m bench.calm UID TARGET`.

It says `ready`, works for as many seconds as each line on its stdin says, and answers with the microseconds of each
eval and ping as a line of JSON. A request that is refused counts as one that took as long as it may at most.
"""

from __future__ import annotations

import sys
import time

import msgspec
import zmq

from bench import ours
from bench.floor import dealer
from bench.shared import become_user

_REST_S = 0.004
_TIMEOUT_S = 60.0
_SESSION = "calm"


class Samples(msgspec.Struct):
    """Microseconds."""

    eval: list[float] = []
    ping: list[float] = []
    refused: int = 0


class CalmAgent:
    """The agent."""

    def __init__(self, target: str) -> None:
        self._socket = dealer(zmq.Context(), target)
        self._socket.rcvtimeo = int(_TIMEOUT_S * 1000)
        self._time_request(_EVAL)

    def work(self, seconds: float) -> Samples:
        """For so long."""
        found = Samples()
        over = time.perf_counter() + seconds
        while time.perf_counter() < over:
            for request, kept in ((_EVAL, found.eval), (_PING, found.ping)):
                took, fine = self._time_request(request)
                found.refused += not fine
                kept.append(took if fine else _TIMEOUT_S * 1e6)
                time.sleep(_REST_S)
        return found

    def _time_request(self, request: bytes) -> tuple[float, bool]:
        began = time.perf_counter()
        self._socket.send(request)
        while True:
            text = ours.decode(self._socket.recv())
            if text.status is not None and "done" in text.status:
                return (time.perf_counter() - began) * 1e6, "error" not in text.status


_EVAL = ours.encode({"id": "e", "op": "eval", "session": _SESSION, "code": "1+1", "if-missing": "create"})
_PING = ours.encode({"id": "p", "op": "ping"})


def main(uid: str, target: str) -> None:
    """Be the process."""
    become_user(int(uid))
    calm = CalmAgent(target)
    print("ready", flush=True)
    while seconds := sys.stdin.readline():
        print(msgspec.json.encode(calm.work(float(seconds))).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
