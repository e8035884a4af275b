"""A broker's own directories and sockets that vanish while it runs: made anew, or told; and starts without them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kit import TIMEOUT_S, BrokerProcess, LineWire, Wire, wait_until
from replctl import Client

Start = Callable[..., BrokerProcess]
PLAIN_UID = 4242  # whom tests/sandbox/as_user.py becomes
Done = subprocess.CompletedProcess[str]


def replctl(broker: BrokerProcess, *words: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "replctl", *words],
        env={**broker.environ, "REPLCTL_ENDPOINT": broker.endpoint},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def wait_for_log(broker: BrokerProcess, text: str) -> None:
    wait_until(lambda: text in broker.log_text(), f"the log says: {text}")


def problems(wire: Wire) -> list[str]:
    return list(wire.ask("stats")["stats"]["problems"])


def test_the_directory_of_its_own_sockets_is_made_anew_and_workers_go_on_and_come(start: Start) -> None:
    broker = start(warm=1)
    with broker.wire() as wire:
        wire.run("x = 1", session="a")
        scratch = broker.private_dir
        for _ in range(2):
            shutil.rmtree(scratch)
            wait_until(lambda: (scratch / "workers").exists(), "it is there again")
            assert scratch.stat().st_mode & 0o777 == 0o700
            assert wire.run("x", session="a").value == "1"
            for name in ("b", "c", "d"):  # more than were warm
                assert wire.run("6*7", session=name).value == "42"
                wire.ask("close", session=name)
        wait_for_log(broker, "had been deleted and was recreated; sessions continue")
        assert problems(wire) == []
    assert broker.stop() == 0
    assert not scratch.exists()


def test_a_scratch_directory_that_cannot_be_made_anew_is_told_and_heals(start: Start) -> None:
    broker = start(warm=0)
    with broker.wire() as wire:
        wire.run("x = 1", session="a")
        scratch = broker.private_dir
        scratch.rename(scratch.with_name(f"{scratch.name}-away"))
        scratch.write_text("in the way")
        wait_until(lambda: problems(wire), "stats say so")
        assert str(scratch) in problems(wire)[0]
        assert wire.run("x", session="a").value == "1"
        found = replctl(broker, "doctor", "--json").stdout
        assert f"{scratch}: " in found
        scratch.unlink()
        wait_until(lambda: not problems(wire), "it heals")
        assert wire.run("6*7", session="b").value == "42"
    shutil.rmtree(scratch.with_name(f"{scratch.name}-away"), ignore_errors=True)  # a start of another may have


def test_the_directory_of_its_socket_is_made_anew_and_everybody_finds_the_same_broker(start: Start) -> None:
    broker = start(warm=0)
    run = broker.directory / "run"
    with broker.wire() as before:
        before.run("x = 1", session="a")
        for vanish in (lambda: shutil.rmtree(run), (run / "b.sock").unlink, (run / "b.sock.lock").unlink):
            vanish()
            wait_until(lambda: (run / "b.sock").exists() and (run / "b.sock.lock").exists(), "it is there again")
            assert before.run("x", session="a").value == "1"
            with Client(broker.endpoint, start=False) as client:
                assert client.eval("x", session="a").value == "1"
        assert run.stat().st_mode & 0o777 == 0o700
        assert replctl(broker, "serve").returncode == 3
    wait_for_log(broker, "b.sock had been deleted and was recreated; sessions and connections continue")


def test_the_socket_of_line_clients_is_made_anew(start: Start) -> None:
    broker = start("broker.unix=/DIRECTORY/lines/l.sock", warm=0)
    with closing(LineWire(broker.listening["unix"])) as before:
        before.run("x = 1", session="a")
        (broker.directory / "lines").rename(broker.directory / "away")
        wait_until((broker.directory / "lines/l.sock").exists, "it is there again")
        assert before.run("x", session="a").value == "1"
        with closing(LineWire(broker.listening["unix"])) as after:
            assert after.run("x", session="a").value == "1"


def test_a_second_start_beside_a_broker_whose_socket_is_gone_finds_that_broker(start: Start) -> None:
    """The broker is stopped, so that it cannot restore its socket, and continued later."""
    broker = start(warm=0)
    with broker.wire() as wire:
        wire.run("x = 1", session="a")
        os.kill(broker.pid, signal.SIGSTOP)
        shutil.rmtree(broker.directory / "run")
        second = subprocess.Popen(
            [sys.executable, "-m", "replctl", "eval", "-s", "a", "x"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**broker.environ, "REPLCTL_ENDPOINT": broker.endpoint},
            text=True,
        )
        wait_until(lambda: (broker.directory / "run/b.sock.start.lock").exists(), "it begins to start one")
        os.kill(broker.pid, signal.SIGCONT)
        out, err = second.communicate(timeout=60)
        assert (out, second.returncode) == ("1\n", 0), err
        assert "lost" not in err


def test_the_state_directory_is_made_anew_for_its_owner_alone_and_the_next_start_takes_it(start: Start) -> None:
    broker = start(warm=0)
    with broker.wire() as wire:
        wire.run("x = 1", session="a")
        kept = {name: (broker.directory / name).read_bytes() for name in ("config.toml", "log")}
        for path in broker.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        broker.directory.rmdir()
        wait_until(lambda: (broker.directory / "run/b.sock").exists(), "its socket is there again")
        wait_until(lambda: broker.directory.stat().st_mode & 0o777 == 0o700, "it is its owner's alone")
        for name, data in kept.items():
            (broker.directory / name).write_bytes(data)
        with broker.wire() as again:
            assert again.run("x", session="a").value == "1"
        wait_until(lambda: (broker.directory / "audit.ndjson").exists(), "the audit goes on")
    broker.stop()
    broker.start()
    assert broker.ready["lost"] == []


@pytest.fixture
def home() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    yield directory
    directory.chmod(0o700)
    shutil.rmtree(directory)


def serve(home: Path) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "replctl", "serve", "--idle-exit", "0.1"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "REPLCTL_STATE_DIR": str(home)},
    )


def one_line(done: Done) -> str:
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_a_start_without_a_directory_for_temporary_files_says_so_in_one_line(home: Path) -> None:
    code = (
        "import os, sys, tempfile; tempfile._candidate_tempdir_list = lambda: ['/nowhere'];"
        "from replctl.main import main; main(['serve', '--idle-exit', '0.1'])"
    )
    env = {**os.environ, "REPLCTL_STATE_DIR": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
    assert "No usable temporary directory" in one_line(done)


def test_a_start_with_a_file_in_the_place_of_a_directory_says_so_in_one_line(home: Path) -> None:
    (home / "run").write_text("a file")
    assert str(home / "run") in one_line(serve(home))


def test_a_state_directory_that_cannot_be_written_is_told_in_one_line_by_both_who_start(home: Path) -> None:
    through = [sys.executable, str(Path(__file__).parents[1] / "sandbox/as_user.py")] if os.getuid() == 0 else []
    if through:
        os.chown(home, PLAIN_UID, PLAIN_UID)
    home.chmod(0o500)
    for words in (["serve"], ["eval", "1"]):
        done = subprocess.run(
            [*through, sys.executable, "-m", "replctl", *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "REPLCTL_STATE_DIR": str(home)},
        )
        assert str(home) in one_line(done)
        assert "Permission denied" in done.stderr
