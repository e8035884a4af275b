"""Every command, through a real broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stub_broker import TIMEOUT_S, Script, StubBroker

if TYPE_CHECKING:
    from conftest import Shell


def run_json(live: Shell, *args: str) -> Any:
    """A command's answer as JSON."""
    return json.loads(live.run(*args, "--json").stdout)


def test_an_eval_prints_the_value(live: Shell) -> None:
    ran = live.run("eval", "6*7")
    assert (ran.returncode, ran.stdout) == (0, "42\n")


def test_state_stays_in_a_session_and_its_opening_is_told_once(live: Shell) -> None:
    first, second = live.run("eval", "-s", "keep", "x = 41"), live.run("eval", "-s", "keep", "x + 1")
    assert (first.stdout, first.stderr.splitlines()[-1]) == ("", f"replctl: new session 'keep' in {os.getcwd()}")
    assert (second.stdout, second.stderr) == ("42\n", "")


def test_a_session_works_in_the_directory_it_was_asked_for_from(live: Shell) -> None:
    assert run_json(live, "eval", "-s", "here", "import os; os.getcwd()")["value"] == repr(os.getcwd())


def test_a_traceback_goes_to_stderr_and_the_exit_code_is_1(live: Shell) -> None:
    ran = live.run("eval", "-s", "raise", "1/0")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_time_limit_interrupts_and_keeps_what_was_printed(live: Shell) -> None:
    ran = live.run("eval", "-s", "loop", "--timeout", "300ms", "print('partial')\nwhile True: pass")
    assert (ran.returncode, ran.stdout) == (6, "partial\n")
    assert "replctl: interrupted after 300 ms, state kept" in ran.stderr


def test_what_runs_past_the_wait_is_read_later(live: Shell) -> None:
    waiting = run_json(live, "eval", "-s", "later", "--wait", "0", "input(); 7")
    assert waiting["exit"] == 9
    live.run("stdin", "later", "go")
    ran = live.run("read", "later", str(waiting["eval-id"]), "--wait", "20s")
    assert (ran.returncode, ran.stdout) == (0, "7\n")


def test_input_can_be_given_ahead(live: Shell) -> None:
    live.run("new", "ahead")
    assert "buffered for later" in live.run("stdin", "ahead", "text").stderr
    assert live.run("eval", "-s", "ahead", "input()").stdout == "'text'\n"


def test_an_eval_is_interrupted_from_elsewhere(live: Shell) -> None:
    process = live.start("eval", "-s", "other", "print('on', flush=True)\nwhile True: pass")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    assert run_json(live, "interrupt", "other")["interrupted"] == ["other"]
    assert process.wait(TIMEOUT_S) == 7


def test_ctrl_c_interrupts_the_real_thing(live: Shell) -> None:
    process = live.start("eval", "-s", "ctrlc", "print('on', flush=True)\nwhile True: pass")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err.decode().splitlines()[0]) == (7, f"replctl: new session 'ctrlc' in {os.getcwd()}")


def test_a_crash_is_told_and_the_next_eval_has_a_fresh_worker(live: Shell) -> None:
    ran = live.run("eval", "-s", "crash", "import os; os.abort()")
    assert (ran.returncode, "SIGABRT" in ran.stderr) == (8, True)
    assert live.run("eval", "-s", "crash", "1").stdout == "1\n"


def test_a_reset_forgets_everything_and_counts_up(live: Shell) -> None:
    live.run("eval", "-s", "reset", "x = 1")
    assert run_json(live, "reset", "reset")["epoch"] == 2
    assert live.run("eval", "-s", "reset", "x").returncode == 1


def test_a_reset_and_a_clone_say_that_the_directory_is_gone(live: Shell, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert live.start("new", "astray", cwd=tmp_path / "gone").wait(TIMEOUT_S) == 0
    assert "directory" not in live.run("reset", "astray").stderr
    shutil.rmtree(tmp_path / "gone")  # protected names are held in it while a session works there
    assert "has no working directory" in live.run("reset", "astray").stderr
    assert "has no working directory" in run_json(live, "reset", "astray")["notice"]
    assert "has no working directory" in live.run("clone", "astray", "astray-2").stderr


def test_sessions_are_opened_listed_told_of_and_closed(live: Shell) -> None:
    assert live.run("new", "listed").stdout == "listed\n"
    assert live.run("new", "listed").returncode == 4
    assert run_json(live, "new", "listed", "--reuse")["created"] is not True
    live.run("eval", "-s", "listed", "word = 'seen'")
    assert "listed" in live.run("ls").stdout
    assert "word: str" in live.run("info", "listed").stdout
    assert [job["code"] for job in run_json(live, "jobs", "listed")["jobs"]] == ["word = 'seen'"]
    closed = run_json(live, "close", "listed")
    assert (closed["closed"], live.run("info", "listed").returncode) == (["listed"], 4)


def test_of_several_that_are_closed_each_has_its_own_fate(live: Shell) -> None:
    live.run("new", "shut")
    result = run_json(live, "close", "nobody", "shut")
    assert (result["closed"], [each["code"] for each in result["failed"]], result["exit"]) == (
        ["shut"],
        ["session-not-found"],
        4,
    )


def test_a_throw_away_eval_leaves_no_session(live: Shell) -> None:
    before = {entry["session"] for entry in run_json(live, "ls")["sessions"]}
    assert run_json(live, "eval", "--ephemeral", "1")["ephemeral"] is True
    assert {entry["session"] for entry in run_json(live, "ls")["sessions"]} <= before


def test_status_says_what_the_broker_does(live: Shell) -> None:
    live.run("eval", "1")
    assert run_json(live, "status")["stats"]["sessions"] >= 1
    assert run_json(live, "version")["broker"]["protocol"]


def test_blocks_from_a_pipe_run_one_by_one_in_the_session(live: Shell) -> None:
    ran = live.run("attach", "piped", input=b"x = 1\ndef f():\n    return x + 1\n\nf()\nname = input()\nbob\nname\n")
    assert (ran.returncode, ran.stdout) == (0, "2\n'bob'\n")


def test_output_that_is_long_arrives_whole(live: Shell) -> None:
    got = run_json(live, "eval", "-s", "long", "for i in range(20000): print('x' * 40)")
    assert len(got["out"]) + (got["dropped-bytes"] or 0) == 820_000


@pytest.mark.parametrize("command", ["status", "shutdown"])
def test_nothing_that_asks_about_the_broker_starts_one(shell: Shell, command: str) -> None:
    ran = shell.run(command)
    assert (ran.returncode, "no broker is running" in ran.stderr) == (3, True)


def test_of_twenty_first_callers_one_starts_the_broker(alone: Shell) -> None:
    callers = [alone.start("eval", "-s", f"s{n}", str(n)) for n in range(20)]
    ended = [caller.communicate(timeout=2 * TIMEOUT_S) for caller in callers]
    assert [out for out, _ in ended] == [b"%d\n" % n for n in range(20)]
    assert sum(err.count(b"started a broker") for _, err in ended) == 1


def test_after_a_broker_was_killed_the_next_command_starts_one_that_has_the_sessions(alone: Shell) -> None:
    result = alone.run("eval", "-s", "kept", "x = 1").stderr
    os.kill(int(result.partition("(pid ")[2].partition(")")[0]), signal.SIGKILL)
    ran = alone.run("eval", "-s", "kept", "x")
    assert (ran.returncode, ran.stdout) == (0, "1\n")
    assert "lost" not in ran.stderr


def test_after_a_broker_was_killed_the_next_command_says_what_was_lost(alone: Shell) -> None:
    result = alone.run("eval", "-s", "gone", "x = 1", REPLCTL_BROKER_ORPHAN_TTL_MS="0").stderr
    broker = int(result.partition("(pid ")[2].partition(")")[0])
    os.kill(broker, signal.SIGKILL)
    ran = alone.run("eval", "1")
    assert (ran.returncode, ran.stdout) == (0, "1\n")
    assert "sessions lost with it: gone" in ran.stderr


@pytest.mark.parametrize("command", [["restart"], ["shutdown", "--keep-sessions"]])
def test_a_broker_that_would_end_its_sessions_is_not_asked_to_keep_them(
    shell: Shell, stub: Callable[[Script], StubBroker], command: list[str]
) -> None:
    asked: list[str] = []

    def answer(request: dict[str, Any], say: Callable[..., None]) -> None:
        asked.append(request["op"])
        say(status=["done"], versions={"replctl": "0.1.0", "protocol": "1"})

    ran = shell.run(*command, "--endpoint", stub(answer).endpoint)
    assert "whose sessions end with it; nothing was done" in ran.stderr
    assert asked == ["describe"]


def test_a_broker_that_cannot_start_is_reported_with_the_end_of_its_log(shell: Shell) -> None:
    ran = shell.run("eval", "1", REPLCTL_LIMITS_MAX_SESSIONS="-5")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "exited before it was ready" in ran.stderr
    assert "limits.max-sessions" in ran.stderr


def test_serve_says_where_it_listens_and_ends_on_sigterm(alone: Shell) -> None:
    process = alone.start("serve", "--json", "--set", "broker.orphan-ttl-ms=0")
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert (ready["pid"], alone.run("eval", "--no-start", "1").stdout) == (process.pid, "1\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    assert alone.run("status").returncode == 3


def test_a_second_broker_at_the_same_address_is_refused_in_words(alone: Shell) -> None:
    alone.run("eval", "1")
    ran = alone.run("serve")
    assert (ran.returncode, "another broker has it" in ran.stderr, "Traceback" in ran.stderr) == (3, True, False)


def test_every_setting_is_shown_with_its_source(shell: Shell) -> None:
    ran = shell.run("config", "show", "--json", "--set", "limits.max-sessions=5", REPLCTL_LIMITS_MAX_HISTORY="7")
    settings = json.loads(ran.stdout)["settings"]
    assert settings["limits.max-sessions"] == {"value": 5, "source": "flag limits.max-sessions"}
    assert settings["limits.max-history"] == {"value": 7, "source": "environment REPLCTL_LIMITS_MAX_HISTORY"}
    assert settings["broker.endpoint"]["source"] == "default"


def test_identities_are_shown_with_their_file(shell: Shell, tmp_path: Path) -> None:
    (file := tmp_path / "config.toml").write_text('[[identities]]\nname = "ada"\nuser = "root"\n')
    listed = json.loads(shell.run("config", "show", "--json", "--config", str(file)).stdout)["settings"]["identities"]
    assert (listed["value"][0]["name"], listed["value"][0]["user"], listed["source"]) == ("ada", "root", str(file))


def test_a_broken_config_file_takes_neither_the_settings_nor_the_help_away(shell: Shell, tmp_path: Path) -> None:
    (file := tmp_path / "config.toml").write_text("[limits]\nmax-sessions = 'many'\nmax-history = 7\nmax-sesions = 1\n")
    ran = shell.run("config", "show", "--config", str(file))
    assert ran.returncode == 2
    assert f"{file}: limits.max-sessions: Expected `int`, got `str`" in ran.stderr
    assert f"{file}: unknown setting limits.max-sesions" in ran.stderr
    rows = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines()}
    assert rows["limits.max-history"] == [str(file), "7"]
    assert rows["limits.max-sessions"] == ["default", "100"]
    assert max(map(len, ran.stdout.splitlines()[:10])) < 80 + len(str(file))
    result = json.loads(shell.run("config", "show", "--json", "--config", str(file)).stdout)
    assert result["status"] == ["done", "error", "invalid-config"]
    assert len(result["problems"]) == 2
    assert result["settings"]["limits.max-history"]["value"] == 7
    file.write_text("[limits\n")
    for words in (("config", "show"), ("--help",), ("doctor",)):
        ran = shell.run(*words, REPLCTL_CONFIG=str(file))
        assert "at line 1" in ran.stdout + ran.stderr or words == ("--help",)
        assert "Traceback" not in ran.stderr
        assert len(ran.stdout.splitlines()) > 10


def test_a_wrong_setting_is_a_usage_error(shell: Shell) -> None:
    assert shell.run("serve", "--set", "limits.max-sesions=5").returncode == 2
