"""The session of a command: as argument, by `-s`, by default, by condition; and suggestions for a mistyped name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from replctl.main import ALIASES, COMMANDS, cli

if TYPE_CHECKING:
    from conftest import Shell


@pytest.fixture(scope="module")
def some(live: Shell) -> Shell:
    """A broker with the sessions `default`, `train-1` and `train-2`; in the last an eval waits for input."""
    live.run("eval", "x = 1")
    live.run("eval", "-s", "train-1", "y = 2")
    live.run("eval", "-s", "train-2", "--wait", "0", "input()")
    return live


def names(some: Shell, *args: str) -> list[str]:
    return some.run("ls", "-q", *args).stdout.splitlines()


def test_a_session_is_an_argument_or_an_option(some: Shell) -> None:
    for words in (("vars", "train-1"), ("vars", "-s", "train-1"), ("vars", "--session=train-1")):
        assert some.run(*words).stdout == "y: int = 2\n"
    assert some.run("read", "-s", "train-1", "1").returncode == some.run("read", "train-1", "1").returncode == 0
    assert some.run("mode", "-s", "train-1", "normal").stdout == "train-1: normal\n"
    twice = some.run("vars", "train-1", "-s", "train-2")
    assert (twice.returncode, "unexpected extra argument" in twice.stderr) == (2, True)


def test_what_only_looks_takes_the_default_session(some: Shell) -> None:
    assert some.run("vars").stdout == "x: int = 1\n"
    assert some.run("history").stdout.splitlines()[-1] == "x = 1"
    assert some.run("env", "show").returncode == some.run("info").returncode == some.run("checkpoints").returncode == 0
    for command in ("reset", "interrupt", "rollback", "share"):
        assert some.run(command).returncode == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_with_a_session_as_argument_has_the_option(name: str) -> None:
    command = cli.get_command(cli.make_context("replctl", [], resilient_parsing=True), name)
    assert command is not None
    words = {each.name: each for each in command.params}
    if "session" in words and words["session"].param_type_name == "argument":
        assert type(command).__name__ == "SessionCommand"
        assert "session_by_option" in words


def test_sessions_are_listed_by_pattern_and_condition(some: Shell) -> None:
    assert {"default", "train-1", "train-2"} <= {*names(some)}
    assert names(some, "train-*") == ["train-1", "train-2"]
    assert names(some, "train-*", "--state", "busy") == ["train-2"]
    assert names(some, "--runtime", "node") == names(some, "--of-agent", "ada") == []
    assert names(some, "train-*", "--idle", "0s") == ["train-1"]
    assert names(some, "--idle", "1h") == []


def test_jobs_of_no_session_are_those_that_run_or_wait_anywhere(some: Shell) -> None:
    [line] = some.run("jobs").stdout.splitlines()[1:]
    assert line.split()[:3] == ["train-2", "1", "running"]
    [job] = json.loads(some.run("jobs", "--json").stdout)["jobs"]
    assert (job["name"], job["eval-id"], job["state"], job["code"]) == ("train-2", 1, "running", "input()")


def test_a_typo_is_answered_with_what_was_meant(some: Shell) -> None:
    assert "hint: did you mean train-1? replctl ls lists sessions" in some.run("stack", "trian-1").stderr
    assert "hint: did you mean train-1?" in some.run("eval", "--no-create", "-s", "tran-1", "1").stderr
    assert "replctl new NAME opens one" in some.run("vars", "wholly-other").stderr
    for typo, meant in (("evla", "eval"), ("sesions", None)):
        ran = some.run(typo)
        also = f"did you mean {meant}?" if meant else "replctl --help lists them."
        assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, f"Error: No command {typo!r}; {also}")


def test_other_words_for_commands_work() -> None:
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)
    context = cli.make_context("replctl", [], resilient_parsing=True)
    for alias, name in ALIASES.items():
        assert cli.get_command(context, alias) is cli.get_command(context, name)


def test_sessions_are_closed_by_condition(alone: Shell) -> None:
    for name in ("a", "b", "c"):
        alone.run("new", name)
    alone.run("eval", "-s", "c", "--wait", "0", "input()")

    def close(*args: str) -> Any:
        return json.loads(alone.run("close", *args, "--json").stdout)["closed"]

    for wrong in ((), ("a", "--all"), ("a", "--idle", "0s")):
        assert alone.run("close", *wrong).returncode == 2
    assert close("--idle", "1h") == []
    assert "none: no session of yours is like that" in alone.run("close", "--idle", "1h").stderr
    assert close("--idle", "0s") == ["a", "b"]
    assert close("--all") == ["c"]
