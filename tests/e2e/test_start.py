"""Start and end of a broker, through the installed command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import CROWDED, TIMEOUT_S, BrokerProcess, is_alive, wait_until
from replwire import paths

Start = Callable[..., BrokerProcess]
Done = subprocess.CompletedProcess[str]


class FreshUser:
    """A user who has never used replctl."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {**os.environ, "REPLCTL_STATE_DIR": str(directory), "HOME": str(directory)}
        self.env.pop("REPLCTL_ENDPOINT", None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "replctl", *words]

    def run(self, *words: str) -> Done:
        return subprocess.run(self.command(*words), env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S)

    def brokers(self) -> set[int]:
        """Pids of brokers that were started for this user."""
        found = set()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if b"serve" in line and str(self.directory).encode() in line and is_alive(int(entry)):
                found.add(int(entry))
        return found


@pytest.fixture
def home() -> Iterator[FreshUser]:
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    home = FreshUser(directory)
    yield home
    home.run("shutdown", "--no-start")
    wait_until(lambda: not home.brokers(), "its broker has ended")
    shutil.rmtree(directory)


def test_the_first_command_starts_a_broker_and_says_so(home: FreshUser) -> None:
    first = home.run("eval", "6*7")
    assert (first.stdout, first.returncode) == ("42\n", 0)
    assert "started a broker" in first.stderr
    assert "new session 'default'" in first.stderr
    second = home.run("eval", "6*7")
    assert (second.stdout, second.stderr) == ("42\n", "")


def test_twenty_first_callers_start_one_broker(home: FreshUser) -> None:
    callers = [
        subprocess.Popen(
            home.command("eval", "-s", f"s{n}", f"{n}*1"),
            env=home.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(20)
    ]
    outputs = [caller.communicate(timeout=60) for caller in callers]
    assert [out for out, _ in outputs] == [f"{n}\n" for n in range(20)], outputs
    assert sum("started a broker" in err for _, err in outputs) == 1
    assert len(home.brokers()) == 1


def test_after_a_killed_broker_the_next_command_starts_one_and_says_what_was_lost(home: FreshUser) -> None:
    home.run("eval", "-s", "work", "x = 1")
    running = subprocess.Popen(
        home.command("eval", "-s", "work", "print('in', flush=True)\nwhile True: pass"),
        env=home.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "in\n"
    (pid,) = home.brokers()
    os.kill(pid, signal.SIGKILL)
    _, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 3
    assert "went away" in err
    after = home.run("eval", "-s", "work", "'x' in globals()")
    assert after.stdout == "False\n"
    assert "sessions lost with it: work" in after.stderr
    assert "earlier state was lost: the broker that had it ended unexpectedly" in after.stderr


def test_a_program_with_more_than_a_thousand_descriptors_starts_a_broker(home: FreshUser) -> None:
    command = [sys.executable, "-c", CROWDED, *home.command("eval", "6*7")]
    done = subprocess.run(command, env=home.env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "42\n")


def test_a_broker_whose_directory_was_cleared_takes_nothing_of_its_successor_along(home: FreshUser) -> None:
    """While it was stopped, so that it could not make it anew."""
    home.run("eval", "-s", "old", "1")
    (old,) = home.brokers()
    os.kill(old, signal.SIGSTOP)
    shutil.rmtree(home.directory / "run")
    for path in home.directory.glob("sessions-*"):
        path.unlink()
    assert home.run("eval", "-s", "new", "x = 41").returncode == 0
    os.kill(old, signal.SIGCONT)
    log = home.directory / "broker.log"
    wait_until(
        lambda: "another broker has taken it; clients cannot find this broker there" in log.read_text(), "it says so"
    )
    os.kill(old, signal.SIGTERM)
    wait_until(lambda: not is_alive(old), "the old broker has ended")
    assert home.run("eval", "--no-start", "-s", "new", "x + 1").stdout == "42\n"
    (pid,) = home.brokers()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the new broker is dead")
    assert "sessions lost with it: new" in home.run("eval", "1").stderr


def test_no_start_means_exit_3(home: FreshUser) -> None:
    done = home.run("eval", "--no-start", "1")
    assert done.returncode == 3
    failed = json.loads(home.run("eval", "--json", "--no-start", "1").stdout)
    started = json.loads(home.run("eval", "--json", "1").stdout)
    assert set(started) <= set(failed)
    home.run("shutdown")
    wait_until(lambda: not home.brokers(), "its broker has ended")
    assert home.brokers() == set()


def test_a_second_broker_at_the_same_address_is_refused_and_the_first_lives_on(start: Start) -> None:
    broker = start()
    second = subprocess.run(
        [sys.executable, "-m", "replctl", "serve", "--endpoint", broker.endpoint],
        env=broker.environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert second.returncode == 3
    assert "another broker has it" in second.stderr
    with broker.wire() as wire:
        assert wire.run("1+1").value == "2"


def test_one_broker_listens_at_several_addresses(home: FreshUser) -> None:
    urls = [f"ipc://{home.directory}/run/{name}.sock" for name in ("a", "b")]
    words = [word for url in urls for word in ("--endpoint", url)]
    serving = subprocess.Popen(
        home.command("serve", "--json", *words),
        env=home.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert serving.stdout is not None
    assert json.loads(serving.stdout.readline())["listening"] == urls
    assert home.run("eval", "--endpoint", urls[0], "x = 1").returncode == 0
    assert home.run("eval", "--endpoint", urls[1], "x").stdout == "1\n"
    serving.terminate()
    assert serving.wait(TIMEOUT_S) == 0
    serving.stdout.close()


def test_the_longest_socket_path_that_is_accepted_works(home: FreshUser) -> None:
    stem = f"ipc://{home.directory}/run/"
    url = stem + "s" * (paths.MAX_IPC_PATH - len(stem.removeprefix("ipc://")))
    assert home.run("eval", "--endpoint", url, "6*7").stdout == "42\n"
    assert home.run("shutdown", "--endpoint", url).returncode == 0
    assert home.run("eval", "--endpoint", url + "s", "1").returncode == 2


def test_what_a_broker_makes_is_its_users_alone(home: FreshUser) -> None:
    home.directory.joinpath("deep").mkdir(mode=0o700)
    home.env["REPLCTL_STATE_DIR"] = str(home.directory / "deep" / "state")
    assert home.run("eval", "1").returncode == 0
    made = list((home.directory / "deep").rglob("*"))
    assert len(made) > 4
    opened = [path for path in made if path.stat().st_mode & 0o077 and not path.is_socket()]
    # Sessions of a root broker are other users, and see their own below a directory that nobody else may enter.
    assert {path.parent.relative_to(home.directory / "deep" / "state") for path in opened} <= {Path("packages/mounts")}
    assert home.run("shutdown").returncode == 0


def test_tcp_beyond_loopback_is_refused(home: FreshUser) -> None:
    done = home.run("serve", "--endpoint", "tcp://0.0.0.0:5555")
    assert done.returncode == 3
    assert "beyond loopback" in done.stderr


def test_a_directory_that_others_may_enter_is_refused(home: FreshUser) -> None:
    (home.directory / "run").mkdir(mode=0o755)
    (home.directory / "run").chmod(0o755)
    done = home.run("serve", "--endpoint", f"ipc://{home.directory}/run/b.sock")
    assert done.returncode == 3
    assert "chmod 700" in done.stderr


@pytest.mark.needs_root("to give a directory away")
def test_a_directory_of_another_user_is_refused_also_to_root(home: FreshUser) -> None:
    directory = home.directory / "theirs"
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, 65534)
    done = home.run("serve", "--endpoint", f"ipc://{directory}/b.sock")
    assert done.returncode == 3
    assert f"{directory}: it belongs to another user (uid 65534)" in done.stderr


def test_sigterm_lets_running_evals_end_and_refuses_new_ones(start: Start) -> None:
    broker = start("limits.close-grace-ms=10000")
    with broker.wire() as wire:
        running = wire.send("eval", code="input()", session="s", if_missing="create")
        wire.until(running, "need-input")
        broker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "shutdown" in wire.run("1", session="t").status, "new evals are refused")
        wire.ask("stdin", session="s", input="done\n")
        assert wire.answer(running).value == "'done'"
        assert broker.process.wait(TIMEOUT_S) == 0


def test_shutdown_answers_who_still_waits_after_the_grace(start: Start) -> None:
    broker = start("limits.close-grace-ms=100")
    with broker.wire() as wire:
        running = wire.send("eval", code="while True: pass", session="s", if_missing="create")
        next(wire.messages(running))
        assert wire.ask("shutdown").status == ["done", "shutdown-started"]
        assert "done" in wire.answer(running).status
        assert broker.process.wait(TIMEOUT_S) == 0


def test_a_broker_that_nothing_uses_ends_by_itself(home: FreshUser) -> None:
    (home.directory / "config.toml").write_text("[broker]\nidle-exit-ms = 300\n")
    home.env["REPLCTL_CONFIG"] = str(home.directory / "config.toml")
    assert home.run("eval", "--ephemeral", "1").returncode == 0
    wait_until(lambda: not home.brokers(), "it has ended")


def test_json_is_one_whole_line_however_long(home: FreshUser) -> None:
    done = home.run("eval", "--json", "print('x' * 300_000)")
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert len(json.loads(lines[0])["out"]) == 300_001
