"""One user of a shared broker takes all it can get: the others, and the broker's own user, still have room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit import BrokerProcess, LineWire, close_sessions, free_tcp, identities_as_root, wait_until

NAMES = ("ada", "bob", "eve")
OTHER_UID = 65534

# Connects as often as it is told, over ZeroMQ or lines, as another user; says how many connections stand.
HOARD = """
import os, socket, sys, time, zmq
"a".encode("idna")  # loaded while this user may still read the library
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
kind, place, count = sys.argv[2], sys.argv[3], int(sys.argv[4])
context, held = zmq.Context(), []
for _ in range(count):
    if kind == "zmq":
        one = context.socket(zmq.DEALER)
        one.setsockopt(zmq.RECONNECT_IVL, -1)
        one.connect(place)
    else:
        one = socket.create_connection(("127.0.0.1", int(place)))
    held.append(one)
print("here", flush=True)
sys.stdin.read()
os._exit(0)
"""


class Guest(LineWire):
    """A line client that has shown a token."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        super().__init__(f"lines+tcp://127.0.0.1:{lines_port(broker)}")
        assert self.ask("hello", token=(broker.directory / f"{name}.token").read_text().strip())["identity"] == name


@contextmanager
def other(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker that every user of the machine can reach over loopback, and guests with tokens."""
    listed = identities_as_root("ada", "bob") + '[[identities]]\nname = "eve"\nquotas = { max-sessions = 1 }\n'
    listed += 'user = "root"\n' if os.getuid() == 0 else ""
    broker = BrokerProcess(
        Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp")),
        "limits.first-request-ms=1500",
        "broker.tcp=127.0.0.1:0",
        "limits.max-eval-time-ms=8000",
        "limits.max-connections=60",
        "limits.max-sessions=20",
        more_endpoints=[free_tcp()],
        config=listed,
    )
    for name in NAMES:
        command = [sys.executable, "-m", "replctl", "keys", "token", name]
        subprocess.run(command, cwd=broker.directory, env=broker.environ, check=True, stdout=subprocess.DEVNULL)
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


def zmq_endpoint(broker: BrokerProcess) -> str:
    return next(url for url in broker.ready["listening"] if url.startswith("tcp://"))


def lines_port(broker: BrokerProcess) -> str:
    return next(url for url in broker.ready["listening"] if url.startswith("lines+tcp://")).rpartition(":")[2]


def in_use(broker: BrokerProcess, identity: str, limit: str) -> int:
    with broker.wire() as wire:
        quotas = wire.ask("stats")["stats"]["quotas"]
        return int(quotas.get(identity, {}).get(limit, {}).get("used", 0))


@pytest.mark.needs_root("to be another user")
@pytest.mark.parametrize("kind", ["zmq", "lines"])
def test_150_idle_connections_of_one_user_lock_nobody_out_and_go(broker: BrokerProcess, kind: str) -> None:
    place, hoarder = zmq_endpoint(broker) if kind == "zmq" else lines_port(broker), f"uid:{OTHER_UID}"
    with ExitStack() as stack:
        hoard = stack.enter_context(other(HOARD, str(OTHER_UID), kind, place, "150"))
        assert hoard.stdout is not None
        assert hoard.stdout.readline() == "here\n"
        bob = stack.enter_context(Guest(broker, "bob"))
        assert bob.run("6*7", session=None).value == "42"
        with broker.wire() as own:
            assert own.run("6*7", session=None).value == "42"
        assert in_use(broker, hoarder, "max-connections") <= 30
        wait_until(lambda: in_use(broker, hoarder, "max-connections") == 0, "silent connections are closed", 10.0)
        late = stack.enter_context(other(HOARD, str(OTHER_UID), kind, place, "1"))
        assert late.stdout is not None
        assert late.stdout.readline() == "here\n"
        wait_until(lambda: in_use(broker, hoarder, "max-connections") == 1, "there is room again", 5.0)


def test_sleeping_jobs_of_one_identity_hold_its_share_of_the_slots(broker: BrokerProcess) -> None:
    with Guest(broker, "ada") as ada, Guest(broker, "bob") as bob, broker.wire() as own:
        sleep = {"code": "import time; time.sleep(60)", "wait_ms": 0, "if_missing": "create"}
        for number in range(10):
            asked = ada.ask("eval", session=f"job{number}", agent=f"label{number}", **sleep)
            assert asked.status == ["done", "running"]
        assert in_use(broker, "ada", "max-concurrent-evals") == 5
        assert bob.run("6*7", session=None).value == "42"
        for number in range(8):
            own.ask("eval", session=f"own{number}", agent="sleeper", **sleep)
        assert own.ask("stats")["stats"]["slots"] == {"taken": 8, "of": 10}
        assert bob.run("6*7", session=None).value == "42"
        assert own.run("6*7", session="calm", agent="calm").value == "42"
        for name in (*(f"own{number}" for number in range(8)), "calm"):
            own.ask("close", session=name)
        for number in range(10):
            assert ada.ask("close", session=f"job{number}").status == ["done", "session-closed"]
    wait_until(lambda: in_use(broker, "ada", "max-sessions") == 0, "nothing is held", 5.0)


def test_sessions_of_one_identity_end_at_its_quota_which_no_label_raises(broker: BrokerProcess) -> None:
    with Guest(broker, "ada") as ada, Guest(broker, "bob") as bob, Guest(broker, "eve") as eve, broker.wire() as own:
        opened = [ada.ask("new-session", name=f"s{number}", agent=f"label{number}") for number in range(11)]
        assert [each.status[-1] for each in opened] == ["done"] * 10 + ["session-limit-reached"]
        refused = opened[-1]
        assert (refused["limit"], refused["limit-value"], refused["quota-of"]) == ("max-sessions", 10, "ada")
        assert refused["retry-after-ms"] == 1000
        assert bob.ask("new-session", name="s0").status == ["done"]
        assert [eve.ask("new-session").status[-1] for _ in range(2)] == ["done", "session-limit-reached"]
        ada.ask("close", session="s0")
        assert ada.ask("new-session", name="again").status == ["done"]
        quotas = ada.ask("stats")["stats"]["quotas"]
        assert list(quotas) == ["ada"]
        assert quotas["ada"]["max-sessions"] == {"used": 10, "quota": 10}
        close_sessions(own)
        assert all(each["max-sessions"]["used"] == 0 for each in own.ask("stats")["stats"]["quotas"].values())


def test_who_asks_too_often_may_still_interrupt_its_own_eval(broker: BrokerProcess) -> None:
    with Guest(broker, "ada") as ada:
        endless = {"code": "while True: pass", "session": "endless", "if_missing": "create", "wait_ms": 0}
        assert ada.ask("eval", **endless).status == ["done", "running"]
        while ada.ask("ping").status[-1] == "pong":
            pass
        assert ada.ask("interrupt", session="endless")["interrupted-id"] == 1
        wait_until(lambda: in_use(broker, "ada", "max-concurrent-evals") == 0, "it ended", 5.0)
        assert ada.ask("close", session="endless").status == ["done", "session-closed"]
