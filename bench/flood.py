"""A neighbour who is a nuisance: `python -m bench.flood KIND UID ZMQ LINES`.

It says `ready`, does its worst for as many seconds as each line on its stdin says, and answers with how often it did.
It never goes on beyond those seconds, and ends with its stdin. Loopback and Unix sockets only.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - to be there before this is another user, who may not read it
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import zmq

from bench import ours
from bench.floor import dealer
from bench.shared import become_user

CHUNK = 64 * 1024
LABELS = 20
_LARGE = 1_000_000
_READERS = 10
_SUBSCRIPTIONS = 20  # of each connection, as many as it may have
_PAIRS = 10_000  # connections that are none of the broker's: two rows each in the kernel's table
_UNDER_WAY = 2
_POLL_MS = 50
_NOW_AND_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a reset, so that no port waits for its end
LoadFunction = Callable[[float], int]  # until then; how often


def _address(lines: str) -> tuple[str, int]:
    host, _, port = lines.rpartition("://")[2].rpartition(":")
    return host, int(port)


def repeat_line(line: bytes) -> Callable[[str, str, ExitStack], LoadFunction]:
    """Return a load: a connection that sends this line, 64 KiB at a time, reads the replies, and reconnects."""
    chunk = line * (CHUNK // len(line))

    def begin(_: str, lines: str, __: ExitStack) -> LoadFunction:
        def flood(over: float) -> int:
            count = 0
            while time.monotonic() < over:
                with socket.create_connection(_address(lines), 1.0) as sock, suppress(OSError):
                    count += _send_chunks(sock, chunk, over)
            return count

        return flood

    return begin


def _send_chunks(sock: socket.socket, chunk: bytes, over: float) -> int:
    """Chunks that went out before the connection ended, or the time did."""
    sock.setblocking(False)
    sent, rest = 0, memoryview(chunk)
    while (left := over - time.monotonic()) > 0:
        readable, writable, _ = select.select([sock], [sock], [], left)
        if readable and not sock.recv(CHUNK):
            return sent
        if writable:
            rest = rest[sock.send(rest) :]
            if not rest:
                sent, rest = sent + 1, memoryview(chunk)
    return sent


def pings(target: str, _: str, __: ExitStack) -> LoadFunction:
    """Send valid pings over ZeroMQ, up to the rate limit beforehand; read only to make room for more."""
    sock = dealer(zmq.Context.instance(), target)
    ping = ours.encode({"id": "p", "op": "ping"})
    while "error" not in _ask(sock, ping):
        pass

    def flood(over: float) -> int:
        count = 0
        while time.monotonic() < over:
            for _ in range(100):
                with suppress(zmq.Again):
                    sock.send(ping, zmq.NOBLOCK)
                    count += 1
            while sock.poll(0):
                sock.recv()
        return count

    return flood


def large(target: str, _: str, __: ExitStack) -> LoadFunction:
    """Evals of nearly a megabyte, one after the other."""
    sock = dealer(zmq.Context.instance(), target)
    body = {"id": "e", "op": "eval", "session": "large", "if-missing": "create", "code": "#" * _LARGE}
    request = ours.encode(body)
    _ask(sock, request)

    def flood(over: float) -> int:
        count = 0
        while time.monotonic() < over:
            if "error" in _ask(sock, request):
                time.sleep(0.001)
            count += 1
        return count

    return flood


def churn(_: str, lines: str, stack: ExitStack) -> LoadFunction:
    """Open connections that ask once and close, while the kernel has thousands of others."""
    _open_pairs(stack)

    def flood(over: float) -> int:
        count = 0
        while time.monotonic() < over:
            with suppress(OSError), socket.create_connection(_address(lines), 1.0) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW_AND_AT_ONCE)
                sock.sendall(b'{"id":"p","op":"ping"}\n')
                sock.recv(CHUNK)
            count += 1
        return count

    return flood


def _open_pairs(stack: ExitStack) -> None:
    """Open connections between two ends of our own, as many as a process may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
    for _ in range(min(_PAIRS, (most - 100) // 2)):
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])


def hog(target: str, _: str, __: ExitStack) -> LoadFunction:
    """One client who says it is twenty agents, with jobs for each of them, more than there are slots."""
    sock = dealer(zmq.Context.instance(), target)

    def job(number: int) -> None:
        name = f"hog{number % LABELS}"
        body = {"id": str(number), "op": "eval", "session": name, "agent": name, "if-missing": "create"}
        sock.send(ours.encode(body | {"code": "import time; time.sleep(0.05)", "wait-ms": 10_000}))

    def flood(over: float) -> int:
        for number in range(LABELS * _UNDER_WAY):
            job(number)
        count, under_way = 0, LABELS * _UNDER_WAY
        while under_way:
            if not sock.poll(_POLL_MS) and time.monotonic() > over + 20:
                break
            while sock.poll(0):
                text = ours.decode(sock.recv())
                if text.status is None or "done" not in text.status:
                    continue
                count, under_way = count + 1, under_way - 1
                if time.monotonic() < over:
                    if "error" in text.status:
                        time.sleep(0.001)
                    job(int(text.id))
                    under_way += 1
        return count

    return flood


def subscriptions(target: str, _: str, __: ExitStack) -> LoadFunction:
    """Many who want to hear everything and never read, and evals for them to hear of."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    want = {"op": "subscribe", "output": True}
    readers = [dealer(context, target) for _ in range(_READERS)]
    for reader in readers:
        for number in range(_SUBSCRIPTIONS):
            reader.send(ours.encode(want | {"id": f"s{number}"}))
    return _evals(dealer(context, target), "for n in range(20): print(n)", rest_s=0.01)


def output(target: str, _: str, __: ExitStack) -> LoadFunction:
    """Run a session that prints without end, and read as fast as possible."""
    code = "import time\nover = time.monotonic() + 1\nwhile time.monotonic() < over: print('x' * 100)"
    return _evals(dealer(zmq.Context.instance(), target), code)


def computing(target: str, _: str, __: ExitStack) -> LoadFunction:
    """No traffic to speak of: code that computes, as it may."""
    code = "import time\nover = time.monotonic() + 1\nwhile time.monotonic() < over: pass"
    return _evals(dealer(zmq.Context.instance(), target), code)


def spinning(_: str, __: str, ___: ExitStack) -> LoadFunction:
    """Spin on one processor without the broker, as the sending loads do."""

    def spin(over: float) -> int:
        count = 0
        while time.monotonic() < over:
            count += 1
        return count

    return spin


def _evals(sock: zmq.Socket[bytes], code: str, rest_s: float = 0.0) -> LoadFunction:
    request = ours.encode({"id": "e", "op": "eval", "session": "noisy", "if-missing": "create", "code": code})
    _ask(sock, ours.encode({"id": "e", "op": "eval", "session": "noisy", "if-missing": "create", "code": "1"}))

    def evals(over: float) -> int:
        count = 0
        while time.monotonic() < over:
            _ask(sock, request)
            time.sleep(rest_s)
            count += 1
        return count

    return evals


def _ask(sock: zmq.Socket[bytes], request: bytes) -> list[str]:
    """Return the last status of a request."""
    sock.send(request)
    while True:
        text = ours.decode(sock.recv())
        if text.status is not None and "done" in text.status:
            return text.status


KINDS: dict[str, Callable[[str, str, ExitStack], LoadFunction]] = {
    "spinning": spinning,
    "computing": computing,
    "lines {}": repeat_line(b"{}\n"),
    "lines x": repeat_line(b"x\n"),
    "line pings": repeat_line(b'{"id":"p","op":"ping"}\n'),
    "pings": pings,
    "large": large,
    "churn": churn,
    "hog": hog,
    "subscriptions": subscriptions,
    "output": output,
}


def main(kind: str, uid: str, target: str, lines: str) -> None:
    """Be the process."""
    become_user(int(uid))
    with ExitStack() as stack:
        worst = KINDS[kind](target, lines, stack)
        print("ready", flush=True)
        while seconds := sys.stdin.readline():
            print(worst(time.monotonic() + float(seconds)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
