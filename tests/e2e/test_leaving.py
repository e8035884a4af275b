"""A client that leaves: what it asked for without a session ends with its connection, on every transport."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit import BrokerProcess, LineWire, Wire, wait_until

# It prints: over TCP, that a connection was closed and not half closed is known when something is sent.
Start = Callable[..., BrokerProcess]
ENDLESS = "import time\nwhile True:\n    print('in', flush=True)\n    time.sleep(0.01)"


def _slots(wire: Wire) -> int:
    return int(wire.ask("stats")["stats"]["slots"]["taken"])


@pytest.mark.parametrize("transport", ["ipc", "tcp", "unix"])
def test_evals_without_a_session_end_with_the_connection_that_asked(
    lines_broker: BrokerProcess, transport: str
) -> None:
    with lines_broker.wire() as watcher:
        leaver = lines_broker.wire() if transport == "ipc" else LineWire(lines_broker.listening[transport])
        runs = leaver.send("eval", code=ENDLESS)
        kept = leaver.send("eval", code=ENDLESS, session=f"kept-{transport}", if_missing="create")
        for asked in (runs, kept):
            next(m for m in leaver.messages(asked) if "out" in m)
        assert _slots(watcher) == 2
        leaver.close()
        wait_until(lambda: _slots(watcher) == 1, "the slot is free again", 5.0)
        jobs = watcher.ask("jobs", session=f"kept-{transport}")["jobs"]
        assert [job["state"] for job in jobs] == ["running"]
        watcher.ask("close", session=f"kept-{transport}")


@pytest.mark.parametrize("transport", ["ipc", "unix"])
def test_evals_without_a_session_that_still_wait_never_run(start: Start, tmp_path: Path, transport: str) -> None:
    broker = start(
        "limits.max-concurrent-evals=1", "limits.rate-limit-per-min=0", "broker.unix=/DIRECTORY/run/lines.sock"
    )
    with broker.wire() as watcher:
        held = watcher.send("eval", code="input()", session="held", if_missing="create")
        watcher.until(held, "need-input")
        leaver = broker.wire() if transport == "ipc" else LineWire(broker.listening[transport])
        for number in range(5):
            leaver.until(leaver.send("eval", code=f"open('{tmp_path}/{number}', 'w')"), "queued")
        leaver.close()
        wait_until(lambda: not watcher.ask("stats")["stats"]["queued"]["total"], "nothing waits", 5.0)
        watcher.ask("stdin", session="held", input="x\n")
        assert watcher.answer(held).value == "'x'"
    assert list(tmp_path.iterdir()) == []
