"""A process that keeps requests under way: `python -m bench.load KIND WINDOW PAUSE_MS TARGET NAME...`.

It says `ready`, begins at the first newline on its stdin, says at each further one how many requests were answered
since the last, and ends when its stdin does. KIND is `ours` (NAMEs are sessions, WINDOW requests under way in each),
`floor` (WINDOW echoes for each NAME) or `ipykernel` (TARGET is a connection file, WINDOW executions under way).
With a pause each session waits that long between an answer and its next request.
"""

from __future__ import annotations

import heapq
import os
import select
import sys
import time
from collections.abc import Callable

import zmq

from bench import ours, peers
from bench.floor import MESSAGE, dealer

_MIX = ("1+1", "x = [n * n for n in range(20)]", "sum(range(100))", "'agent'.upper()")
_LOOK_S = 0.01  # how often the driver's pipe is looked at
_TURN = 64
_ANSWER_S = 30.0


class ReplctlLoad:
    """Evals in sessions of a broker, a lane each."""

    def __init__(self, endpoint: str, names: list[str]) -> None:
        self._socket = dealer(zmq.Context(), endpoint)
        self._names = names
        self._count = 0
        for name in names:
            self._socket.send(ours.encode({"id": name, "op": "new-session", "name": name}))
        for _ in names:
            self._is_done(ours.decode(self._socket.recv()))

    @staticmethod
    def _is_done(expected: ours.ReplyMessage) -> bool:
        if expected.status is None or "done" not in expected.status:
            return False
        if "error" in expected.status:
            raise ours.BenchRequestRefused(f"{expected.status}: {expected.err}")
        return True

    def send(self, lane: int) -> None:
        """One more request in a lane."""
        self._count += 1
        code = _MIX[self._count % len(_MIX)]
        self._socket.send(ours.encode({"id": str(lane), "op": "eval", "session": self._names[lane], "code": code}))

    def take_finished(self, seconds: float) -> list[int]:
        """Lanes whose requests ended, waiting this long for the first."""
        lanes: list[int] = []
        while len(lanes) < _TURN and self._socket.poll(0 if lanes else int(seconds * 1000)):
            text = ours.decode(self._socket.recv())
            if self._is_done(text):
                lanes.append(int(text.id))
        return lanes


class EchoLoad:
    """Echoes."""

    def __init__(self, endpoint: str, _: list[str]) -> None:
        self._socket = dealer(zmq.Context(), endpoint)

    def send(self, lane: int) -> None:
        """One more."""
        self._socket.send(b"%03d" % lane + MESSAGE[3:])

    def take_finished(self, seconds: float) -> list[int]:
        """Return lanes whose requests ended, after waiting this long for the first."""
        lanes: list[int] = []
        while len(lanes) < _TURN and self._socket.poll(0 if lanes else int(seconds * 1000)):
            lanes.append(int(self._socket.recv()[:3]))
        return lanes


class KernelLoad:
    """Executions in one kernel, over when replied and idle."""

    def __init__(self, connection_file: str, _: list[str]) -> None:
        self._client = peers.connect(connection_file)
        self._sent: set[str] = set()

    def send(self, _: int) -> None:
        """One more."""
        self._sent.add(self._client.execute(_MIX[len(self._sent) % len(_MIX)]))

    def take_finished(self, seconds: float) -> list[int]:
        """Return lanes whose requests ended, after waiting this long for the first."""
        client, lanes = self._client, list[int]()
        while len(lanes) < _TURN and client.iopub_channel.socket.poll(0 if lanes else int(seconds * 1000)):
            result = client.iopub_channel.get_msg(timeout=0)
            if result["parent_header"].get("msg_id") in self._sent and peers.is_idle(result):
                while client.shell_channel.get_msg(timeout=_ANSWER_S)["parent_header"]["msg_id"] not in self._sent:
                    continue
                lanes.append(0)
        return lanes


def drive(
    peer: ReplctlLoad | EchoLoad | KernelLoad,
    lanes: int,
    window: int,
    pause_s: float,
    should_stop: Callable[[int], bool],
) -> None:
    """Keep `window` requests under way in each lane until `told`, which hears the count now and then, says stop."""
    for _ in range(window):
        for lane in range(lanes):
            peer.send(lane)
    count = 0
    resting: list[tuple[float, int]] = []
    look = time.monotonic()
    while True:
        due = min(look, resting[0][0]) if resting else look
        for lane in peer.take_finished(max(0.0, due - time.monotonic())):
            count += 1
            if pause_s:
                heapq.heappush(resting, (time.monotonic() + pause_s, lane))
            else:
                peer.send(lane)
        now = time.monotonic()
        while resting and resting[0][0] <= now:
            peer.send(heapq.heappop(resting)[1])
        if now >= look:
            look = now + _LOOK_S
            if should_stop(count):
                return


def main(kind: str, window: str, pause_ms: str, target: str, *names: str) -> None:
    """Be the process."""
    lanes = list(names)
    kinds: dict[str, type[ReplctlLoad | EchoLoad | KernelLoad]] = {
        "ours": ReplctlLoad,
        "floor": EchoLoad,
        "ipykernel": KernelLoad,
    }
    peer = kinds[kind](target, lanes)
    print("ready", flush=True)
    os.read(0, 1)
    before = 0

    def is_complete(count: int) -> bool:
        nonlocal before
        if not select.select([0], [], [], 0)[0]:
            return False
        if not os.read(0, 1):
            return True
        print(count - before, flush=True)
        before = count
        return False

    drive(peer, len(lanes), int(window), int(pause_ms) / 1000, is_complete)


if __name__ == "__main__":
    main(*sys.argv[1:])
