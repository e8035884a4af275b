"""`replctl top` and `replctl tail` as installed: at a terminal, in a pipe, in a dumb terminal; and what they leave."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from kit import TIMEOUT_S, BrokerProcess, is_alive, processes_with, wait_until
from top_kit import Terminal

Start = Callable[..., BrokerProcess]
Run = Callable[..., Terminal]
_COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;\d+)*m")


def run(broker: BrokerProcess, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replctl", *args, "--endpoint", broker.endpoint],
        env={**broker.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def busy(start: Start) -> BrokerProcess:
    """A broker with a session that has printed, one that runs and one that waits."""
    broker = start()
    with broker.wire() as wire:
        wire.run("print('hi'); 6*7", "done", agent="ada")
        wire.ask("new-session", name="runs", agent="grace")
        wire.ask("eval", session="runs", agent="grace", code="import time\nprint('go')\ntime.sleep(600)", wait_ms=100)
        wire.ask("eval", session="runs", agent="ada", code="'waits'", wait_ms=100)
    return broker


def test_in_a_pipe_one_snapshot_is_printed(busy: BrokerProcess) -> None:
    for args in (["top"], ["top", "--once"]):
        done = run(busy, *args)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert lines[1].startswith("slots |......... 1/10   queued 1")
        assert re.search(r"^done +idle +python +1 +1 +- +- ", done.stdout, re.M)
        assert re.search(r"^runs +busy +python +1 +2 +1 +\S+ .* grace +import time print\('go'\)", done.stdout, re.M)
        assert re.search(r"^running +\S+ runs +1 grace", done.stdout, re.M)
        assert re.search(r"^queued +\S+ runs +2 ada +'waits'$", done.stdout, re.M)
        assert re.search(r"^ok +\S+ done +1 ada +print\('hi'\); 6\*7$", done.stdout, re.M)
        assert re.search(r"^grace +1 +1 +- ", done.stdout, re.M)


def test_as_json_it_is_one_object_on_one_line(busy: BrokerProcess) -> None:
    done = run(busy, "top", "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stdout.count("\n"), result["status"], result["all"]) == (0, 1, ["done"], True)
    assert [(each["name"], each["state"], each["queued"], each["running"]) for each in result["sessions"]] == [
        ("done", "idle", 0, None),
        ("runs", "busy", 1, 1),
    ]
    assert [(each["state"], each["agent"]) for each in result["jobs"]] == [
        ("running", "grace"),
        ("queued", "ada"),
        ("done", "ada"),
    ]
    assert {each["name"]: each["queued"] for each in result["agents"]} == {"ada": 1, "grace": 0}
    assert result["broker"]["slots"] == {"taken": 1, "of": 10}
    assert result["sessions"][0]["memory-bytes"] > 1_000_000


def test_without_a_broker_it_says_so(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replctl", "top", "--no-start", "--json", "--endpoint", f"ipc://{tmp_path}/b"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["code"]) == (3, "no-broker")


def test_an_interval_that_is_too_short_is_a_usage_error(busy: BrokerProcess) -> None:
    done = run(busy, "top", "--interval", "100ms")
    assert (done.returncode, "at least 0.2 seconds" in done.stderr) == (2, True)


def test_only_the_live_screen_loads_textual(busy: BrokerProcess) -> None:
    code = "import sys, replctl.main\ntry:\n  replctl.main.main(sys.argv[1:])\nfinally:\n  print('LOADED', 'textual' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "top", "--once", "--endpoint", busy.endpoint],
        env=busy.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "LOADED False False"


def test_where_textual_is_missing_the_screen_says_how_to_get_it(
    busy: BrokerProcess, terminal: Run, tmp_path: object
) -> None:
    with open(f"{tmp_path}/sitecustomize.py", "w") as hook:
        hook.write(
            "import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda n, *a: None if n == 'textual' else found(n, *a)\n"
        )
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    at = terminal(busy, "top", PYTHONPATH=paths)
    assert at.wait_for_exit() == 2
    assert "pip install 'replctl[tui]'" in at.output


def test_in_a_dumb_terminal_it_is_one_snapshot_and_a_word_why(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top", TERM="dumb")
    assert at.wait_for_exit() == 0
    assert "\x1b" not in at.output
    assert "queue and jobs: 3" in at.output
    assert "replctl tail follows" in at.output


def test_at_a_terminal_it_is_a_screen_that_shows_interrupts_and_ends(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top")
    at.wait_for("Sessions (2)")
    at.write("G")
    at.wait_for("Output of runs")
    at.wait_for("go")
    at.write("i")
    at.wait_for("interrupting eval 1 of runs")
    at.wait_for("cancelled")
    at.write("q")
    assert at.wait_for_exit() == 0
    assert at.is_restored()
    assert _COLOUR.search(at.output)


def test_no_color_is_respected_by_screen_and_tail(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top", NO_COLOR="1")
    at.wait_for("Output of done")
    at.write("jq")
    assert at.wait_for_exit() == 0
    assert not _COLOUR.search(at.output)
    at = terminal(busy, "tail", "done", "--since", "0", NO_COLOR="1")
    at.wait_for("eval/finished 1 ok")
    at.write("\x03")
    assert at.wait_for_exit() == 0
    assert "\x1b" not in at.output


def test_lines_are_drawn_in_utf_8_whatever_the_locale(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top", LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    at.wait_for("──")
    at.write("q")
    assert at.wait_for_exit() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(
    busy: BrokerProcess, terminal: Run, number: signal.Signals
) -> None:
    at = terminal(busy, "top")
    at.wait_for("Sessions (2)")
    at.process.send_signal(number)
    assert at.wait_for_exit() == 128 + number
    assert at.is_restored()


def test_ctrl_c_quits(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top")
    at.wait_for("Sessions (2)")
    at.write("\x03")
    assert at.wait_for_exit() == 0
    assert at.is_restored()


def test_a_terminal_that_goes_away_ends_it(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top")
    at.wait_for("Sessions (2)")
    os.close(at._theirs)
    os.close(at.ours)
    wait_until(lambda: at.process.poll() is not None, "it ends")
    at.ours, at._theirs = os.pipe()


def test_attach_takes_the_terminal_and_gives_it_back(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top", NO_COLOR="1")
    at.wait_for("Sessions (2)")
    at.write("a")
    at.wait_for("done>")
    at.write("x = 40 + 2\r")
    at.write("x\r")
    at.wait_for("42")
    at.write("\x03")
    at.wait_for("done>")
    at.write("\x04")
    at.wait_for("back from done")
    at.write("q")
    assert at.wait_for_exit() == 0
    assert at.is_restored()


def test_a_signal_while_it_is_attached_ends_both(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "top", REPLCTL_AGENT="both-end")
    at.wait_for("Sessions (2)")
    at.write("\r")
    at.wait_for("done>")
    family = processes_with("REPLCTL_AGENT=both-end")
    assert len(family) == 2
    at.process.send_signal(signal.SIGTERM)
    assert at.wait_for_exit() == 128 + signal.SIGTERM
    assert at.is_restored()
    wait_until(lambda: not any(map(is_alive, family)), "both are gone")


def test_a_screen_that_is_killed_takes_its_attach_along(busy: BrokerProcess) -> None:
    ours, theirs = pty.openpty()
    code = f"import os; from replctl.top.attach import attach; attach('done', {busy.endpoint!r}, 'cli', os.environ)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**busy.environ, "TEST_WHO": "orphan", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )
    shown = b""
    while b"done>" not in shown:
        assert select.select([ours], [], [], TIMEOUT_S)[0], shown
        shown += os.read(ours, 65536)
    family = processes_with("TEST_WHO=orphan")
    assert len(family) == 2
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, family)), "both are gone")
    os.close(ours)
    os.close(theirs)


def test_an_attach_that_fails_can_be_read_before_the_screen_comes_back(start: Start, terminal: Run) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("1", "one")
        at = terminal(broker, "top", REPLCTL_STATE_DIR="/dev/null/none")
        at.wait_for("Sessions (1)")
        at.write("a")
        at.wait_for("press Enter to return to top")
        at.write("\r")
        at.wait_for("attach ended with exit code")
    at.write("q")
    assert at.wait_for_exit() == 0


def test_tail_at_a_terminal_is_coloured_and_follows(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "tail", "--output")
    with busy.wire() as wire:
        wait_until(
            lambda: wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"], "it listens"
        )
        wire.run("print('\x1b[31mhi\x1b[0m')\n1/0", "done")
    at.wait_for("eval/accepted\x1b[0m 2")
    at.wait_for("hi")
    at.wait_for("\x1b[31meval/finished\x1b[0m 2 error")
    at.write("\x03")
    assert at.wait_for_exit() == 0


def test_tail_in_a_pipe_and_in_a_dumb_terminal_has_no_colour(busy: BrokerProcess, terminal: Run) -> None:
    at = terminal(busy, "tail", "done", "--since", "0", "--output", TERM="dumb")
    at.wait_for("eval/finished 1 ok")
    with busy.wire() as wire:
        wire.run("print('\x1b[31mred\x1b[0m \x1b]0;title\x07text')", "done")
        at.wait_for("red")
        at.wait_for("text")
        wire.ask("close", session="done")
    assert at.wait_for_exit() == 0
    assert "\x1b" not in at.output
    done = subprocess.Popen(
        [sys.executable, "-m", "replctl", "tail", "runs", "--since", "0", "--endpoint", busy.endpoint],
        env=busy.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout is not None
    first = done.stdout.readline()
    with busy.wire() as wire:
        wire.ask("close", session="runs")
    out, _ = done.communicate(timeout=30)
    assert "session/created" in first
    assert (done.returncode, "\x1b" in first + out, "session/closed" in out) == (0, False, True)
