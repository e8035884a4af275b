"""Cost of a list of hosts: at a new session, at a connection, for bytes, and in memory for a hundred sessions.

Everything stays on loopback: a server in this process is what the list leads to.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import ours, procs
from bench.stats import BenchTable, Check, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

NONE, LISTED, HOST = "network none", "network list, 20 hosts", "network host"
_ROLES: dict[str, Role] = {NONE: "floor", LISTED: "ours", HOST: "floor"}
_POOL = 4
_HOSTS = 20
_MANY = 100
_CHUNK = bytes(1 << 20)
_CONNECT = """
import socket, time
def connect(host, port):
    begin = time.perf_counter()
    with socket.create_connection((host, port)) as s:
        s.recv(1)
    return time.perf_counter() - begin
def rate(host, port, count):
    buffer = bytearray(1 << 20)
    with socket.create_connection((host, port)) as s:
        s.sendall(count.to_bytes(8, "big")); s.recv(1)
        begin, left = time.perf_counter(), count
        while left > 0:
            left -= s.recv_into(buffer)
    return count / (time.perf_counter() - begin) / 1e9
"""


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Four tables: a new session, a connection, throughput, memory of the proxy."""
    with ExitStack() as stack:
        port = stack.enter_context(_server())
        listed = [
            'sandbox.network="list"',
            f"sandbox.allowed-hosts={[f'h{number}.test' for number in range(_HOSTS)]}",
            f'sandbox.host-addresses=["*.test=127.0.0.1:{port}"]',
            'sandbox.private-networks=["127.0.0.0/8"]',
        ]
        settings = {NONE: [], LISTED: listed, HOST: ['sandbox.network="host"']}
        brokers = {who: stack.enter_context(ours.broker(_POOL, settings=each)) for who, each in settings.items()}
        raws = {who: broker.raw() for who, broker in brokers.items()}
        return [
            _new_session(plan, raws),
            *_traffic(plan, raws, {LISTED: ("h0.test", 80), HOST: ("127.0.0.1", port)}),
            _memory(brokers[LISTED], raws[LISTED]),
        ]


def _new_session(plan: BenchPlan, raws: dict[str, ours.RawClient]) -> BenchTable:
    def first(raw: ours.RawClient) -> None:
        assert raw.call("eval", **{"code": "1+1", "session": "new", "if-missing": "create"}).value == "2"

    def ready() -> None:
        for raw in raws.values():
            if any(entry["name"] == "new" for entry in raw.call("ls-sessions").sessions or ()):
                raw.call("close", session="new")
            raw.wait_warm(_POOL)

    calls = {who: TimedCall(lambda raw=raw: first(raw), 3, before=ready) for who, raw in raws.items()}  # type: ignore[misc]
    samples = time_in_turns(calls, plan.of(12, 3))
    rows = [SampleRow(who, _ROLES[who], scale(each, 1e3)) for who, each in samples.items()]
    table = BenchTable("network-new", "New session to the first answer, from the warm pool", "ms", NONE, rows)
    more = table.row(LISTED).p50 - table.row(NONE).p50
    table.checks.append(Check("a list of 20 hosts at a new session", more, 4, at_most=True, unit="ms more"))
    return table


def _traffic(plan: BenchPlan, raws: dict[str, ours.RawClient], targets: dict[str, tuple[str, int]]) -> list[BenchTable]:
    """Time connections and a gigabyte inside sessions, in turns."""
    times: dict[str, list[float]] = {who: [] for who in targets}
    firsts: dict[str, list[float]] = {who: [] for who in targets}
    rates: dict[str, list[float]] = {who: [] for who in targets}
    for turn in range(plan.of(10, 3)):
        for who, (host, port) in targets.items():
            name = f"traffic{turn}"
            raws[who].call("new-session", name=name)
            raws[who].eval(_CONNECT, name)
            firsts[who].append(_number(raws[who], f"connect({host!r}, {port})", name) * 1e3)
            for _ in range(10):
                times[who].append(_number(raws[who], f"connect({host!r}, {port})", name) * 1e3)
            size = plan.of(1 << 30, 1 << 27)
            rates[who].append(_number(raws[who], f"rate({host!r}, {port}, {size})", name))
            raws[who].call("close", session=name)

    def rows(samples: dict[str, list[float]]) -> list[SampleRow]:
        return [SampleRow(who, _ROLES[who], each) for who, each in samples.items()]

    first = BenchTable("network-first", "First connection of a session, with the lookup", "ms", HOST, rows(firsts))
    more = first.row(LISTED).p50 - first.row(HOST).p50
    first.checks.append(Check("first connection through the list", more, 2, at_most=True, unit="ms more"))
    later = BenchTable("network-connect", "A later connection, with the lookup", "ms", HOST, rows(times))
    rate = BenchTable("network-rate", "Bytes from a host", "GB/s", HOST, rows(rates), more_is_better=True)
    rate.checks.append(Check("through the proxy on loopback", rate.row(LISTED).p50, 1, at_most=False, unit="GB/s"))
    return [first, later, rate]


def _memory(broker: ours.BenchBroker, raw: ours.RawClient) -> BenchTable:
    """Measure the proxy with a hundred sessions that have each connected once."""
    samples: dict[str, list[float]] = {}
    for count in (1, _MANY):
        for number in range(len(samples) and 1, count):
            raw.call("new-session", name=f"m{number}")
            raw.eval("import socket; socket.create_connection(('h1.test', 80)).recv(1)", f"m{number}")
        procs.settle()
        proxy = next(pid for pid in procs.process_tree(broker.pid) if _name_of(pid) == "replctl-egress")
        samples[f"{count} session{'s'[: count > 1]}"] = [procs.pss_mb(proxy)]
    rows = [SampleRow(who, "ours", each) for who, each in samples.items()]
    table = BenchTable("network-memory", "PSS of the egress proxy", "MB", "1 session", rows)
    most = samples[f"{_MANY} sessions"][0]
    table.checks.append(Check(f"the egress proxy for {_MANY} sessions", most, 15, at_most=True, unit="MB"))
    return table


def _number(raw: ours.RawClient, code: str, session: str) -> float:
    return float(raw.eval(code, session) or "nan")


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def _server() -> Iterator[int]:
    """Serve one byte to who says nothing, and as many bytes as are asked for in eight."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    connection.sendall(b"x")
                    left = int.from_bytes(connection.recv(8), "big")
                    while left > 0:
                        left -= connection.send(_CHUNK[:left] if left < len(_CHUNK) else _CHUNK)
                except OSError:
                    pass

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
