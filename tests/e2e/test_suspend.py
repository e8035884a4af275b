"""A broker that is stopped for a while: its clients wait, and the time counts for nobody's limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kit import TIMEOUT_S, BrokerProcess, free_tcp, wait_until

Start = Callable[..., BrokerProcess]
BUSY = "import time\nprint('in', flush=True)\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n6 * 7"
LIMIT = "limits.max-eval-time-ms=4000"


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """None of them runs meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def test_code_that_was_stopped_with_its_broker_has_all_of_its_time(start: Start) -> None:
    broker = start(LIMIT)
    with broker.wire() as wire:
        asked = wire.send("eval", code=BUSY.format(seconds=0.5), session="s", if_missing="create")
        next(m for m in wire.messages(asked) if "out" in m)
        with stopped(*sorted(broker.process_tree())):
            time.sleep(5.5)
        assert wire.answer(asked).value == "42"


def test_code_that_never_ends_is_stopped_at_its_limit_though_the_broker_was_stopped_meanwhile(start: Start) -> None:
    broker = start("limits.max-eval-time-ms=2000")
    with broker.wire() as wire:
        asked = wire.send("eval", code="while True: pass", session="s", if_missing="create")
        wait_until(lambda: wire.ask("stats")["stats"]["slots"]["taken"], "it runs")
        with stopped(broker.pid):
            time.sleep(1.5)
        answer = wire.answer(asked)
        assert answer.status == ["done", "error", "timeout"]
        assert answer["state"] == "kept"


def test_clients_wait_for_a_broker_that_is_stopped_for_longer_than_any_heartbeat(start: Start) -> None:
    """The kernel says when the other end is gone, and this one is not."""
    broker = start(LIMIT, more_endpoints=[free_tcp()])
    clients = []
    for session, endpoint in (("a", broker.endpoint), ("b", broker.listening["tcp"])):
        command = [
            sys.executable,
            "-m",
            "replctl",
            "eval",
            "--endpoint",
            endpoint,
            "-s",
            session,
            BUSY.format(seconds=0.5),
        ]
        clients.append(
            subprocess.Popen(command, env=broker.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "in\n"
    with stopped(broker.pid):
        time.sleep(22)
    for client in clients:
        out, err = client.communicate(timeout=TIMEOUT_S)
        assert (client.returncode, out) == (0, "42\n"), err
