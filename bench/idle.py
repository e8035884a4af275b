"""Connections that say nothing, as many as can be had: `python -m bench.idle UID ZMQ LINES COUNT`.

Half of them go to the ZeroMQ socket, half to the line port. It says how each fared, as a line of JSON (words and
counts), holds them until a line comes on its stdin or the stdin ends, and ends.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - to be there before this is another user, who may not read it
import json
import resource
import socket
import sys
import time
from collections import Counter

import msgspec

from bench.shared import become_user

_CONNECT_S = 0.5
_AGAIN_S = 0.002
_ENOUGH = 20  # in vain: those after them are not tried, but counted as them
_LISTEN_S = 1.0  # for the last words to those that came last


def _address(url: str) -> tuple[int, str | tuple[str, int]]:
    kind, _, place = url.partition("://")
    if kind == "ipc":
        return socket.AF_UNIX, place
    host, _, port = place.rpartition(":")
    return socket.AF_INET, (host, int(port))


def _connection_outcome(sock: socket.socket) -> str:
    """Return the state of a connection as a word."""
    try:
        result = sock.recv(1000)
    except BlockingIOError:
        return "taken"
    except OSError:
        return "ended without a word"
    if not result:
        return "ended without a word"
    if result.startswith(b"{"):
        return str(msgspec.json.decode(result.split(b"\n")[0])["status"][-1])
    return "greeted"  # by libzmq


def _connect(url: str) -> socket.socket | None:
    """Return a connection, or None if none is accepted in time: a full queue at a Unix socket does not wait."""
    family, place = _address(url)
    over = time.monotonic() + _CONNECT_S
    while True:
        sock = socket.socket(family)
        sock.settimeout(_CONNECT_S)
        try:
            sock.connect(place)
        except OSError:
            sock.close()
            if time.monotonic() > over:
                return None
            time.sleep(_AGAIN_S)
            continue
        sock.setblocking(False)
        return sock


def main(uid: str, target: str, lines: str, count: str) -> None:
    """Be the process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    become_user(int(uid))
    held: list[tuple[str, socket.socket]] = []
    fates: Counter[str] = Counter()
    full: Counter[str] = Counter()
    for number in range(int(count)):
        where, url = ("zmq", target) if number % 2 else ("lines", lines)
        sock = None if full[where] >= _ENOUGH else _connect(url)
        if sock is None:
            full[where] += 1
        else:
            held.append((where, sock))
    fates.update({f"{where}: not accepted": count for where, count in full.items()})
    time.sleep(_LISTEN_S)
    fates.update(f"{where}: {_connection_outcome(sock)}" for where, sock in held)
    print(json.dumps(fates), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
