"""A broker that may open few files: it refuses with a word what it has none for, ends nothing, and heals."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kit import BrokerProcess, LineWire, Wire, free_tcp, wait_until
from replctl import Client

Start = Callable[..., BrokerProcess]
FEW = ("prlimit", "--nofile=1024:1024")
COMERS = 5000


@pytest.fixture
def few(start: Start) -> BrokerProcess:
    return start(
        "broker.tcp=127.0.0.1:0",
        "broker.unix=/DIRECTORY/run/lines.sock",
        "limits.rate-limit-per-min=0",
        more_endpoints=[free_tcp()],
        through=FEW,
    )


def places(broker: BrokerProcess) -> Iterator[tuple[int, str | tuple[str, int]]]:
    """Yield families and addresses of the listeners, endlessly."""
    found: list[tuple[int, str | tuple[str, int]]] = []
    for url in broker.ready["listening"]:
        kind, _, place = url.partition("://")
        host, _, port = place.rpartition(":")
        family = socket.AF_INET if kind.endswith("tcp") else socket.AF_UNIX
        found.append((family, (host, int(port)) if family == socket.AF_INET else place))
    while True:
        yield from found


def come(stack: ExitStack, broker: BrokerProcess, number: int) -> int:
    """So many silent connections, on all listeners; how many of them the kernel has taken."""
    taken = 0
    for _, (family, address) in zip(range(number), places(broker), strict=False):
        end = stack.enter_context(socket.socket(family))
        end.setblocking(False)
        try:
            end.connect(address)
        except BlockingIOError:
            taken += family == socket.AF_INET
        except OSError:
            continue
        else:
            taken += 1
    return taken


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def test_thousands_of_connections_neither_end_it_nor_those_that_it_has(few: BrokerProcess) -> None:
    with few.wire() as wire, LineWire(few.listening["unix"]) as line:
        wire.run("x = 41")
        line.ask("ping")
        with ExitStack() as stack:
            assert come(stack, few, COMERS) > 500
            for _ in range(20):
                assert wire.run("x + 1").value == "42"
                assert line.ask("ping").status == ["done", "pong"]
                time.sleep(0.02)
            assert descriptors(few) < 1000
            assert wire.ask("new-session", name="another").status == ["done"]
        wait_until(lambda: wire.ask("stats")["stats"]["connections"] == 2, "they are gone")
        for url in (few.endpoint, few.listening["tcp"]):
            with LineWire(url) if url.startswith("lines") else Wire(url) as later:
                assert later.ask("ping").status == ["done", "pong"]
    assert "internal error" not in few.log_text()


def test_hundreds_of_sessions_are_refused_with_a_word(few: BrokerProcess) -> None:
    with few.wire() as wire:
        sent = [wire.send("new-session", name=f"s{number}") for number in range(400)]
        words = Counter(wire.answer(each, timeout_s=60).status[-1] for each in sent)
        assert words == {"done": 100, "session-limit-reached": 300}
        assert wire.run("6*7", session="s7").value == "42"
        wire.ask("close", session="s7")
        assert wire.ask("new-session", name="later").status == ["done"]
        assert descriptors(few) < 1000


def test_what_does_not_fit_is_said_at_the_start_and_kept(start: Start) -> None:
    broker = start(through=("prlimit", "--nofile=256:400"))
    (warning,) = [each for each in broker.ready["warnings"] if "open files" in each]
    with broker.wire() as wire:
        limits = wire.ask("describe")["limits"]
        assert f"{limits['max-sessions']} sessions and {limits['max-connections']} connections" in warning
        assert 0 < limits["max-sessions"] < 100
        sent = [wire.send("new-session", name=f"s{number}") for number in range(limits["max-sessions"] + 3)]
        words = [wire.answer(each, timeout_s=60).status[-1] for each in sent]
        assert words == ["done"] * limits["max-sessions"] + ["session-limit-reached"] * 3
        seen = wire.run("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]", session="s1").value
        assert seen == "256"  # the broker's own is higher: that is not handed on


def test_a_broker_is_reached_and_knows_its_clients_by_ipv6(start: Start) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]
    broker = start(more_endpoints=[f"tcp://[::1]:{port}"])
    with Client(broker.listening["tcp"], start=False) as client:
        assert client.eval("6*7").value == "42"
        assert client.describe().identity == f"uid:{os.getuid()}"
