"""A broker as an object of a program: its life, its addresses, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit import TIMEOUT_S, Wire, is_alive, wait_until
from replctl import Broker, ReplError

OPEN = {"sandbox": {"profile": "off", "allow-unsandboxed": True}, "broker": {"warm-workers": 1}}
ROOT = Path(__file__).resolve().parents[2]
HOST = """
import sys, time
from replctl import Broker
broker = Broker(config={"sandbox": {"profile": "off", "allow-unsandboxed": True}})
with broker.client() as client:
    client.eval("import os; pid = os.getpid()")
    print(broker.pid, client.eval("pid").value, broker.endpoint, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(["tcp://127.0.0.1:0", "lines+tcp://127.0.0.1:0"], OPEN) as found:
        yield found


def test_a_program_has_a_broker_of_its_own(broker: Broker) -> None:
    with broker.client() as client:
        assert client.eval("6 * 7").value == "42"
    assert broker.endpoint == broker.endpoints[0]


def test_port_0_takes_a_free_port(broker: Broker) -> None:
    assert broker.port is not None
    assert broker.endpoints[1:] == [f"tcp://127.0.0.1:{broker.port}", broker.endpoints[2]]
    with Wire(broker.endpoints[1]) as wire:
        assert wire.ask("ping").status == ["done", "pong"]


def test_an_event_loop_can_use_it(broker: Broker) -> None:
    async def evaluate() -> str | None:
        async with broker.async_client() as client:
            return (await client.eval("1 + 1", "async")).value

    assert asyncio.run(evaluate()) == "2"


def test_its_end_ends_sessions_process_and_directory() -> None:
    with Broker(config=OPEN) as broker, broker.client() as client:
        pid = int(client.eval("import os; os.getpid()").value or "")
        directory = Path(broker.endpoint.removeprefix("ipc://")).parents[1]
    assert not broker.is_running
    assert not directory.exists()
    wait_until(lambda: not is_alive(pid), "the end of the session's interpreter")
    broker.close()  # once more does no harm


def test_draining_waits_for_what_runs(tmp_path: Path) -> None:
    broker = Broker(config=OPEN)
    with broker.client() as client:
        client.eval(f"import time; time.sleep(0.5); open({str(tmp_path / 'done')!r}, 'w').close()", wait=0)
    broker.close(drain=TIMEOUT_S)
    assert (tmp_path / "done").exists()


def test_several_threads_have_brokers_of_their_own_and_the_program_stays_as_it_was() -> None:
    before = _own_settings()

    def run(number: int) -> str | None:
        with Broker(config=OPEN) as broker, broker.client() as client:
            client.eval(f"x = {number}")
            return client.eval("x").value

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == ["0", "1", "2"]
    assert _own_settings() == before


def _own_settings() -> tuple[object, ...]:
    mask = os.umask(0o022)
    os.umask(mask)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)]
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    return mask, handlers, resource.getrlimit(resource.RLIMIT_NOFILE), os.getcwd(), children


def test_a_killed_program_leaves_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        broker_pid, session_pid, endpoint = host.stdout.readline().split()
        host.kill()
    wait_until(lambda: not is_alive(int(broker_pid)), "the end of the broker")
    wait_until(lambda: not is_alive(int(session_pid)), "the end of the session")
    assert Path(endpoint.removeprefix("ipc://")).parents[1].exists()
    with Broker(config=OPEN):
        assert not Path(endpoint.removeprefix("ipc://")).parents[1].exists()


def test_settings_are_private_and_those_of_the_user_do_not_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text("[limits]\nmax-history = 3\n")
    monkeypatch.setenv("REPLCTL_CONFIG", str(tmp_path / "mine.toml"))
    monkeypatch.setenv("REPLCTL_LIMITS_MAX_SESSIONS", "1")
    with Broker(config=OPEN | {"limits": {"max-value-bytes": 64}}) as broker, broker.client() as client:
        limits = client.describe().limits or {}
        file = Path(broker.endpoint.removeprefix("ipc://")).parents[1] / "config.toml"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert limits["max-value-bytes"] == 64
    assert limits["max-history"] > 3
    assert limits["max-sessions"] > 1


def test_a_state_directory_that_is_named_stays(tmp_path: Path) -> None:
    with Broker(config=OPEN, state_dir=tmp_path / "state"):
        pass
    assert (tmp_path / "state" / "broker.log").is_file()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"config": {"limits": {"nope": 1}}}, "unknown setting limits.nope"),
        ({"listen": "http://127.0.0.1:1"}, "not an address to listen at: http://127.0.0.1:1"),
        ({"listen": "tcp://0.0.0.0:0"}, "clients beyond loopback need keys"),
        ({"start_timeout": 0.0}, "was not ready in time"),
    ],
)
def test_a_broker_that_cannot_start_says_why(options: dict[str, object], why: str) -> None:
    with pytest.raises(ReplError) as refused:
        Broker(**options)  # type: ignore[arg-type]
    assert why in refused.value.message


def test_a_lease_needs_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replctl", "serve", "--end-with-stdin", "--endpoint", f"ipc://{tmp_path}/b.sock"]
    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path)}
    started = time.monotonic()
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, check=False)
    assert (ended.returncode, "standard input is not a pipe" in ended.stderr) == (3, True)
    assert time.monotonic() - started < TIMEOUT_S


def test_the_example_program_runs_as_printed() -> None:
    ran = subprocess.run([sys.executable, "-m", "docs.embedded"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"$ python -m docs.embedded\n{ran.stdout}```" in (ROOT / "docs" / "embedding.md").read_text()
    assert len((ROOT / "docs" / "embedded.py").read_text().splitlines()) < 60
