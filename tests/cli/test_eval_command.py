"""`replctl eval` as a process, against a scripted broker."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stub_broker import TIMEOUT_S, Script, Send, StubBroker, command_environment, send_done

if TYPE_CHECKING:
    from conftest import Shell

Start = Callable[[Script], StubBroker]


def ends(**fields: Any) -> Script:
    """A broker whose evals print a little and end so."""

    def script(_: dict[str, Any], say: Send) -> None:
        say(out="hello")
        say(err="warn\n")
        send_done(say, **fields)

    return script


def test_output_and_value_go_to_stdout_and_the_rest_to_stderr(stub: Start, shell: Shell) -> None:
    ran = shell.run("eval", "--endpoint", stub(ends(value="42", created=True)).endpoint, "6*7")
    assert (ran.returncode, ran.stdout) == (0, "hello\n42\n")
    assert ran.stderr == "warn\nreplctl: new session 'default'\n"


@pytest.mark.parametrize(
    ("fields", "code", "expected"),
    [
        (
            {
                "status": ["done", "error"],
                "err": "ZeroDivisionError: no",
                "traceback": "Traceback\nZeroDivisionError: no",
            },
            1,
            "Traceback\nZeroDivisionError: no\n",
        ),
        (
            {"status": ["done", "error", "timeout"], "err": "x", "max-eval-time-ms": 2000},
            6,
            "replctl: interrupted after 2 s, state kept\n",
        ),
        ({"status": ["done", "interrupted"]}, 7, "replctl: interrupted, state kept\n"),
        (
            {"status": ["done", "error", "worker-lost"], "err": "the worker died", "state": "lost", "cause": "SIGABRT"},
            8,
            "replctl: the worker died; state lost: SIGABRT (epoch 1)\n",
        ),
        ({"status": ["done", "running"]}, 9, "replctl: still running as eval 1; replctl read default 1 --wait 60s\n"),
        (
            {"status": ["done", "error", "rate-limited"], "err": "too many", "retry-after-ms": 2000},
            5,
            "replctl: too many\nreplctl: try again in 2 s\n",
        ),
        (
            {"status": ["done", "error", "session-not-found"], "err": "nobody", "hint": "send if-missing"},
            4,
            "replctl: nobody\nreplctl: hint: replctl ls lists sessions, replctl new NAME opens one\n",
        ),
    ],
)
def test_each_end_has_its_exit_code_and_its_words(
    stub: Start, shell: Shell, fields: dict[str, Any], code: int, expected: str
) -> None:
    ran = shell.run("eval", "--endpoint", stub(ends(**fields)).endpoint, "x")
    assert (ran.returncode, ran.stdout.rstrip(), ran.stderr) == (code, "hello", "warn\n" + expected)


def test_json_is_one_line_with_every_field_whatever_the_end(stub: Start, shell: Shell) -> None:
    lines = [
        shell.run("eval", "--json", "--endpoint", stub(ends(**fields)).endpoint, "x").stdout
        for fields in ({"value": "1"}, {"status": ["done", "error", "rate-limited"], "err": "too many"})
    ]
    good, bad = (json.loads(line) for line in lines)
    assert [line.count("\n") for line in lines] == [1, 1]
    assert good.keys() == bad.keys()
    needed = {"value", "out", "err", "status", "state", "epoch", "eval-id", "session", "duration-ms", "ex"}
    assert needed <= good.keys()
    assert (good["out"], good["err"], good["session"], bad["code"]) == ("hello", "warn\n", "default", "rate-limited")


def test_json_is_not_cut_where_a_pipe_is_full(stub: Start, shell: Shell) -> None:
    ran = shell.run("eval", "--json", "--endpoint", stub(ends(value="v" * 500_000)).endpoint, "x")
    assert len(json.loads(ran.stdout)["value"]) == 500_000


def test_code_comes_from_a_file_or_from_stdin_too(stub: Start, shell: Shell) -> None:
    broker = stub(ends())
    (shell.state / "c.py").write_text("é = 1\n")
    shell.run("eval", "--endpoint", broker.endpoint, "-f", str(shell.state / "c.py"))
    shell.run("eval", "--endpoint", broker.endpoint, "-s", "work", "-", input=b"2\n")
    file, piped = broker.next_request(), broker.next_request()
    assert (file["code"], piped["code"], piped["session"]) == ("é = 1\n", "2\n", "work")
    assert piped["cwd"] == os.getcwd()


@pytest.mark.parametrize(
    "args", [(), ("1", "-f", "x"), ("-f", "/no/such"), ("--timeout", "2x", "1"), ("--timeout", "0", "1")]
)
def test_usage_errors_exit_with_2_and_ask_nobody(shell: Shell, args: tuple[str, ...]) -> None:
    assert shell.run("eval", "--no-start", *args).returncode == 2
    result = json.loads(shell.run("eval", "--json", "--no-start", *args).stdout)
    assert (result["exit"], result["code"]) == (2, "invalid-request")


def test_without_a_broker_and_leave_to_start_one_it_exits_with_3(shell: Shell) -> None:
    ran = shell.run("eval", "--no-start", "1")
    assert (ran.returncode, ran.stdout, "no broker is running" in ran.stderr) == (3, "", True)
    assert json.loads(shell.run("eval", "--json", "--no-start", "1").stdout)["code"] == "no-broker"


def test_a_reader_that_goes_away_ends_it_without_a_traceback(stub: Start, shell: Shell) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = shell.start("eval", "--endpoint", stub(ends(value="1")).endpoint, "x", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, b"Traceback" in err) == (141, False)


def test_with_its_standard_files_closed_it_sends_no_output_into_a_socket(stub: Start, shell: Shell) -> None:
    broker = stub(ends(value="1"))
    command = f"exec {shlex.quote(sys.executable)} -m replctl eval --endpoint {broker.endpoint} x <&- >&- 2>&-"
    ran = subprocess.run(["sh", "-c", command], env=command_environment(shell.state), timeout=TIMEOUT_S, check=False)
    assert (ran.returncode, broker.next_request()["op"]) == (0, "eval")


@pytest.mark.parametrize("module", ["asyncio", "prompt_toolkit", "replbroker", "logging", "subprocess", "tomllib"])
def test_an_eval_loads_no_more_than_it_needs(stub: Start, shell: Shell, module: str) -> None:
    process = shell.start(
        "eval", "--endpoint", stub(ends()).endpoint, "x", python=["-X", "importtime"], stdout=subprocess.DEVNULL
    )
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert f" {module}\n" not in err.decode()


def test_help_loads_neither_zmq_nor_the_settings(shell: Shell) -> None:
    _, err = shell.start("--help", python=["-X", "importtime"]).communicate(timeout=TIMEOUT_S)
    assert " click\n" in err.decode()
    assert " zmq\n" not in err.decode()
    assert " replwire.config\n" not in err.decode()


def test_the_given_text_answers_input(stub: Start, shell: Shell) -> None:
    waiting: dict[str, Send] = {}

    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            waiting["eval"] = say
            say(status=["need-input"], session="u-1")
        else:
            send_done(waiting["eval"], value=repr(request["input"]))

    ran = shell.run("eval", "--endpoint", stub(script).endpoint, "--stdin", "yes", "input()")
    assert ran.stdout == "'yes\\n'\n"


def running(obeys: bool) -> Script:
    """A broker whose evals print and then run until they are interrupted, or for ever."""
    waiting: list[Send] = []

    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            waiting.append(say)
            say(out="started\n")
        else:
            say(status=["done"], interrupted=["u-1"])
            for each in waiting if obeys else ():
                send_done(each, status=["done", "interrupted"])

    return script


def test_ctrl_c_interrupts_the_eval_and_its_end_is_awaited(stub: Start, shell: Shell) -> None:
    process = shell.start("eval", "--endpoint", stub(running(obeys=True)).endpoint, "x")
    started(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (7, b"replctl: interrupted, state kept\n")


def test_a_second_ctrl_c_leaves_at_once_and_says_that_the_eval_goes_on(stub: Start, shell: Shell) -> None:
    broker = stub(running(obeys=False))
    process = shell.start("eval", "--endpoint", broker.endpoint, "x")
    started(process)
    process.send_signal(signal.SIGINT)
    assert [broker.next_request()["op"], broker.next_request()["op"]] == ["eval", "interrupt"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (7, b"replctl: left; the eval keeps running in session 'default'\n")


def started(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
