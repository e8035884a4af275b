"""Client that asks for many sessions: `python -m bench.openers UID TARGET COUNT`.

All requests at once; says how many ended with which word, as a line of JSON. At the first line on its stdin, or its
end, the sessions that it got are closed, and it ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import zmq

from bench import ours
from bench.floor import dealer
from bench.shared import become_user

_TIMEOUT_S = 40.0


def _answers(sock: zmq.Socket[bytes], awaited: set[str]) -> dict[str, list[str]]:
    """Return the last status of each of these, as far as they come in time."""
    found: dict[str, list[str]] = {}
    over = time.monotonic() + _TIMEOUT_S
    while len(found) < len(awaited) and sock.poll(int(max(0.0, over - time.monotonic()) * 1000)):
        text = ours.decode(sock.recv())
        if text.id in awaited and text.status is not None and "done" in text.status:
            found[text.id] = text.status
    return found


def main(uid: str, target: str, count: str) -> None:
    """Be the process."""
    become_user(int(uid))
    sock = dealer(zmq.Context(), target)
    names = {f"s{number}" for number in range(int(count))}
    for name in names:
        sock.send(ours.encode({"id": name, "op": "eval", "session": name, "if-missing": "create", "code": "1"}))
    answers = _answers(sock, names)
    words = Counter(status[-1] for status in answers.values())
    words["no answer"] = len(names) - len(answers)
    print(json.dumps(words), flush=True)
    sys.stdin.readline()
    opened = {name for name, status in answers.items() if status == ["done"]}
    for name in opened:
        sock.send(ours.encode({"id": name, "op": "close", "session": name}))
    _answers(sock, opened)


if __name__ == "__main__":
    main(*sys.argv[1:])
