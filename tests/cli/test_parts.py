"""The small parts: durations, addresses, notices, blocks of a prompt, the screen."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from replctl import ReplError, Result
from replctl.client.address import absolute_endpoint, directory_problem, is_listening, resolve
from replctl.commands.attach_blocks import is_complete
from replctl.commands.messages import (
    end_notices,
    hint_for,
    input_needed_notice,
    opening_notices,
    plan_notice,
    status_notice,
)
from replctl.commands.output import CommandOutput
from replctl.durations import format_duration, parse_duration
from replwire.replies import Reply


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2),
        ("500ms", 0.5),
        ("1.5m", 90),
        ("1h", 3600),
        ("2d", 172_800),
        ("3", 3),
        ("0", 0),
        (" 2 S ", 2),
        (".5", 0.5),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1e3", "nan", "inf", "2s5", "٣s x", "999999h"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|year"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(350, "350 ms"), (2000, "2 s"), (1500, "1.5 s"), (200_000, "3 min 20 s"), (7_500_000, "2 h 5 min")],
)
def test_durations_are_told_as_people_say_them(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_the_endpoint_is_the_flags_then_the_environments_then_the_configs_then_the_users_own(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[broker]\nendpoint = "tcp://127.0.0.1:3"\n')
    plain = {"REPLCTL_STATE_DIR": "/s", "XDG_CONFIG_HOME": str(tmp_path / "none")}
    filed = {**plain, "REPLCTL_CONFIG": str(config)}
    named = {**filed, "REPLCTL_ENDPOINT": "tcp://127.0.0.1:2"}
    assert resolve("tcp://127.0.0.1:1", named, 0) == ("tcp://127.0.0.1:1", "flag")
    assert resolve(None, named, 0) == ("tcp://127.0.0.1:2", "REPLCTL_ENDPOINT")
    assert resolve(None, filed, 0) == ("tcp://127.0.0.1:3", str(config))
    assert resolve(None, plain, 0) == ("ipc:///s/run/broker.sock", "default")


def test_a_config_that_cannot_be_used_is_an_error_and_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("[broker]\nendpont = 1\n")
    with pytest.raises(ReplError) as caught:
        resolve(None, {"REPLCTL_CONFIG": str(tmp_path / "d")}, 0)
    assert (caught.value.code, "endpont" in caught.value.message) == ("invalid-request", True)


@pytest.mark.parametrize(
    "endpoint", ["ipc://", "http://x", "tcp://nohost", "tcp://h:0", "tcp://h:x", "ipc:///" + "x" * 104]
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ReplError) as caught:
        absolute_endpoint(endpoint)
    assert caught.value.code == "invalid-request"


def test_a_socket_path_does_not_depend_on_the_directory_of_whoever_uses_it() -> None:
    assert absolute_endpoint("ipc://x.sock") == f"ipc://{os.getcwd()}/x.sock"


def test_a_socket_file_that_nobody_listens_on_is_no_broker(short: Path) -> None:
    (short / "stale").touch()
    assert not is_listening(f"ipc://{short}/none")
    assert not is_listening(f"ipc://{short}/stale")


def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    tmp_path.chmod(0o700)
    assert "0777" in str(directory_problem(str(open_to_all), os.getuid()))
    assert directory_problem(str(tmp_path), os.getuid()) is None


@pytest.mark.parametrize(
    ("result", "notices"),
    [
        (Result(status=["done"], session="work", created=True, state="kept"), ["new session 'work'"]),
        (
            Result(status=["done", "error", "timeout"], state="kept", max_eval_time_ms=2000, duration_ms=2001.0),
            ["interrupted after 2 s, state kept"],
        ),
        (
            Result(
                status=["done", "error", "timeout"],
                state="lost",
                max_eval_time_ms=2000,
                duration_ms=4001.0,
                epoch=2,
                cause="killed",
            ),
            ["killed after 2 s, state lost: killed (epoch 2)"],
        ),
        (Result(status=["done", "interrupted"], state="kept"), ["interrupted, state kept"]),
        (
            Result(status=["done", "running"], session="work", eval_id=3),
            ["still running as eval 3; replctl read work 3 --wait 60s"],
        ),
        (
            Result(status=["done"], state="lost", cause="out of memory", epoch=3),
            ["earlier state was lost: out of memory; this ran in a fresh worker (epoch 3)"],
        ),
        (
            Result(status=["done", "error"], state="lost", cause="out of memory", epoch=3, error="NameError: x"),
            ["earlier state was lost: out of memory; this ran in a fresh worker (epoch 3)"],
        ),
        (Result(status=["done"], truncated=True, dropped_bytes=9_000_000), ["output truncated, 9000000 bytes dropped"]),
    ],
)
def test_nothing_that_befell_an_eval_is_kept_from_people(result: Result, notices: list[str]) -> None:
    assert [*opening_notices(result), *end_notices(result)] == notices


def test_a_refusal_of_plan_mode_says_since_when_and_why_in_the_words_of_a_shell() -> None:
    refused = Reply(id="1", status=["done", "error", "plan-mode"], entered_at="2026-01-01T00:00:00.000+00:00")
    assert plan_notice(refused) == "in plan mode since 2026-01-01T00:00:00.000+00:00"
    refused.entered_reason = "reading only"
    assert str(plan_notice(refused)).endswith(": reading only")
    assert plan_notice(Reply(id="1", status=["done", "error", "plan-mode"])) is None
    assert plan_notice(None) is None
    assert "replctl mode SESSION normal" in str(hint_for("plan-mode", "`set-mode`"))


def test_waiting_and_asking_are_told_while_they_last() -> None:
    assert status_notice(Reply(id="1", status=["queued"], queue_position=2)) == "queued behind 2 evals"
    assert status_notice(Reply(id="1", status=["queued"], queue_position=1)) == "queued behind 1 eval"
    assert input_needed_notice("w") == 'the code waits for input: replctl stdin w "text"'


@pytest.mark.parametrize(
    "text",
    ["1", "for i in x: print(i)", "def f():\n    return 1\n", "1 +* 2", "/reset", "", "await f()", "if x:\n    y\nz"],
)
def test_a_block_that_can_run_is_complete(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize(
    "text", ["def f():", "(1,", "'''a", "for i in x:\n    print(i)", "@deco", "if x:\n    y\nelse:"]
)
def test_a_block_that_may_go_on_is_not(text: str) -> None:
    assert not is_complete(text)


def test_a_long_line_of_json_passes_a_pipe_whole() -> None:
    reader, writer = os.pipe()
    got: list[bytes] = []

    def drain() -> None:
        with open(reader, "rb") as pipe:
            got.append(pipe.read())

    thread = threading.Thread(target=drain)
    thread.start()
    CommandOutput(out=writer).json({"out": "x" * 300_000})
    os.close(writer)
    thread.join()
    assert len(json.loads(got[0])["out"]) == 300_000
    assert got[0].count(b"\n") == 1


@pytest.mark.parametrize(
    ("value", "ns", "shown", "status"),
    [
        ("42", "__main__", "42", None),
        ("None", "__main__", None, None),
        ("undefined", "__main__", "undefined", None),
        ("undefined", "globalThis", None, None),
        ("None", "globalThis", "None", None),
        ("0", "shell", None, None),
        ("3", "shell", None, "exit status 3"),
        ("0", "globalThis", "0", None),
        ("", "__main__", None, None),
        (None, "shell", None, None),
        (None, None, None, None),
    ],
)
def test_a_value_is_shown_unless_the_runtime_calls_it_none_and_a_failed_command_tells_its_status(
    value: str | None, ns: str | None, shown: str | None, status: str | None
) -> None:
    result = Result(value=value, ns=ns)
    assert (result.display_value, result.exit_status) == (shown, status)


def test_a_line_of_ours_is_a_fresh_one(tmp_path: Path) -> None:
    with open(tmp_path / "o", "wb") as file:
        screen = CommandOutput(out=file.fileno())
        screen.live("out", "no newline \ud800")
        screen.line("42")
    assert (tmp_path / "o").read_bytes() == b"no newline \\ud800\n42\n"


def test_a_full_disk_behind_stdout_is_told_in_a_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, open(tmp_path / "e", "wb") as file, pytest.raises(SystemExit) as ended:
        CommandOutput(full.fileno(), file.fileno()).line("42")
    assert ended.value.code == 1
    assert (tmp_path / "e").read_text() == "replctl: cannot write to stdout: No space left on device\n"


def test_notices_show_terminal_control_instead_of_obeying_it(tmp_path: Path) -> None:
    with open(tmp_path / "e", "wb") as file:
        CommandOutput(err=file.fileno()).notice("a\x1b[2Jb")
    assert (tmp_path / "e").read_text() == "replctl: a\\x1b[2Jb\n"
