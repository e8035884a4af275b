"""A machine that has no memory or no descriptor for a step of the broker's loop: the broker goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from kit import BrokerProcess, LineWire, free_tcp, wait_until

# `replctl serve` in which a method of the broker raises for as long as a file names it.
FAULTY = """
import errno, importlib, os, sys
ERRORS = {"memory": MemoryError(), "process": OSError(errno.EMFILE, "Too many open files"),
          "machine": OSError(errno.ENFILE, "Too many open files in system")}
fault = os.environ["REPLCTL_STATE_DIR"] + "/fault"

def made_faulty(owner, method):
    whole = getattr(owner, method)
    def faulty(*args, **options):
        if os.path.exists(fault):
            name, error = open(fault).read().split()
            if name == f"{owner.__name__}.{method}":
                with open(fault + ".times", "a") as times:
                    times.write("x")
                raise ERRORS[error]
        return whole(*args, **options)
    setattr(owner, method, faulty)

for module, name, method in (
    ("core.engine", "BrokerCore", "tick"), ("transports.line_server", "LineServer", "process"),
    ("sinks.transcript_sink", "TranscriptSink", "flush"), ("transports.client_router", "ClientRouter", "send"),
    ("transports.worker_router", "WorkerRouter", "receive"),
):
    made_faulty(getattr(importlib.import_module("replbroker." + module), name), method)
from replctl.main import main
main(sys.argv[4:])
"""
ERRORS = ("memory", "process", "machine")


@pytest.fixture(scope="module")
def faulty() -> Iterator[BrokerProcess]:
    broker = BrokerProcess(
        Path(mkdtemp(prefix="rpl-", dir="/tmp")),
        "broker.tcp=127.0.0.1:0",
        "limits.rate-limit-per-min=0",
        "limits.max-eval-time-ms=500",
        more_endpoints=[free_tcp()],
        through=(sys.executable, "-c", FAULTY),
    )
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()


def begin(broker: BrokerProcess, method: str, error: str) -> Callable[[], int]:
    """Have a method raise; returns how often it has."""
    (times := broker.directory / "fault.times").write_text("")
    (fresh := broker.directory / "fault.new").write_text(f"{method} {error}")
    os.rename(fresh, broker.directory / "fault")
    return lambda: len(times.read_text())


def end(broker: BrokerProcess) -> None:
    (broker.directory / "fault").unlink()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", ["BrokerCore.tick", "LineServer.process", "TranscriptSink.flush"])
def test_a_step_that_lacks_something_is_taken_again_and_holds_up_no_other(
    faulty: BrokerProcess, method: str, error: str
) -> None:
    with faulty.wire() as wire, LineWire(faulty.listening["tcp"]) as line:
        assert line.ask("ping").status == ["done", "pong"]
        endless = wire.send("eval", code="while True: pass", session="s", if_missing="create")
        next(m for m in iter(lambda: wire.ask("stats"), None) if m["stats"]["slots"]["taken"])
        reported = faulty.log_text().count("short of memory or descriptors")
        times = begin(faulty, method, error)
        asked = line.send("ping")
        wait_until(lambda: times() >= 3, "the step fails")
        for _ in range(5):
            assert wire.ask("ping").status == ["done", "pong"]
        assert times() < 1000
        end(faulty)
        assert line.answer(asked).status == ["done", "pong"]
        assert wire.answer(endless).status == ["done", "error", "timeout"]
        assert wire.run("6*7", session="s").value == "42"
    assert faulty.log_text().count("short of memory or descriptors") - reported <= 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_client_whose_answer_lacks_something_is_hung_up_on(faulty: BrokerProcess, error: str) -> None:
    with faulty.wire() as wire, LineWire(faulty.listening["tcp"]) as line:
        assert line.ask("ping").status == ["done", "pong"]
        times = begin(faulty, "ClientRouter.send", error)
        wire.send("ping")
        wait_until(lambda: times() >= 1, "the answer fails")
        end(faulty)
        wait_until(lambda: line.ask("stats")["stats"]["connections"] == 1, "it is hung up on")
    with faulty.wire() as later:
        assert later.ask("ping").status == ["done", "pong"]
