"""Agents of one user, each with a session and a mixed load: `python -m bench.agents UID TARGET COUNT`.

It says `ready`, works for as many seconds as each line on its stdin says, and answers with how many evals each agent
had done, one after the other, as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import zmq

from bench import ours
from bench.floor import dealer
from bench.shared import become_user

_WAIT_MS = 30_000
_MIX = (
    "1 + 1",
    "for n in range(40): print('line', n, 'x' * 40)",
    "sum(n * n for n in range(20_000))",
    "import time; time.sleep(0.02)",
    "[n for n in range(500)]",
)


class MixedLoadAgents:
    """All of them, in one thread."""

    def __init__(self, target: str, count: int) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets = [dealer(context, target) for _ in range(count)]
        self._numbers = {socket: number for number, socket in enumerate(self._sockets)}
        self._turns = list(range(count))  # each begins elsewhere in the mix
        for number, socket in enumerate(self._sockets):
            self._poller.register(socket, zmq.POLLIN)
            self._send(number)
        self._work_until(time.monotonic())

    def work(self, seconds: float) -> list[int]:
        """For so long, and to the ends of what runs then; evals of each that ended in time."""
        for number in range(len(self._sockets)):
            self._send(number)
        return self._work_until(time.monotonic() + seconds)

    def _send(self, number: int) -> None:
        name, self._turns[number] = f"agent{number}", self._turns[number] + 1
        body = {"id": "e", "op": "eval", "session": name, "agent": name, "if-missing": "create"}
        self._sockets[number].send(ours.encode(body | {"code": _MIX[self._turns[number] % len(_MIX)]}))

    def _work_until(self, over: float) -> list[int]:
        counts = [0] * len(self._sockets)
        under_way = len(counts)
        while under_way:
            ready = self._poller.poll(_WAIT_MS)
            if not ready:
                raise TimeoutError("no answer came")
            for socket, _ in ready:
                text = ours.decode(socket.recv())
                if text.status is None or "done" not in text.status:
                    continue
                if "error" in text.status:
                    raise ours.BenchRequestRefused(f"{text.status}: {text.err}")
                if time.monotonic() < over:
                    counts[self._numbers[socket]] += 1
                    self._send(self._numbers[socket])
                else:
                    under_way -= 1
        return counts


def main(uid: str, target: str, count: str) -> None:
    """Be the process."""
    become_user(int(uid))
    agents = MixedLoadAgents(target, int(count))
    print("ready", flush=True)
    while seconds := sys.stdin.readline():
        print(json.dumps(agents.work(float(seconds))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
