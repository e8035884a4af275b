"""Sessions of node and bash through a broker, bare and in the sandbox: the same words do the same things."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import BrokerProcess, Wire, close_sessions

NODE = pytest.param("node", marks=pytest.mark.needs_program("node"))
RUNTIMES = [NODE, "bash"]


@pytest.fixture(scope="module", params=["bare", "sandboxed"])
def site(request: pytest.FixtureRequest) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker, and a directory to work in."""
    directory, work = (Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")) for prefix in ("rpl-", "rpl-work-"))
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0", sandbox=request.param == "sandboxed")
    yield broker, work
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)
    shutil.rmtree(work)


@pytest.fixture
def wire(site: tuple[BrokerProcess, Path]) -> Iterator[Wire]:
    with site[0].wire() as wire:
        yield wire
        close_sessions(wire)


CODE = {
    "node": {
        "set": "const x = 41",
        "get": "x + 1",
        "got": "42",
        "print": "console.log('hi')",
        "busy": "while (true) {}",
        "wait": "await new Promise(() => {})",
        "wrong": "nothing.at.all",
        "broken": "function (",
        "exit": "process.exit(3)",
        "prefix": "console.lo",
        "whole": "log",
        "ns": "globalThis",
    },
    "bash": {
        "set": "x=41",
        "get": "echo $((x + 1))",
        "got": "0",
        "print": "echo hi",
        "busy": "while :; do :; done",
        "wait": "sleep 100",
        "wrong": None,
        "broken": "if true; then",
        "exit": "exit 3",
        "prefix": "ech",
        "whole": "echo",
        "ns": "shell",
    },
}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_state_lasts_and_output_is_told_apart_from_the_value(
    wire: Wire, site: tuple[BrokerProcess, Path], runtime: str
) -> None:
    code = CODE[runtime]
    opened = wire.ask("new-session", name="s", runtime=runtime, cwd=str(site[1]))
    assert opened.status == ["done"], opened.messages
    wire.run(code["set"])
    answer = wire.run(code["get"])
    assert (answer.value, answer.out) == (code["got"], "42\n" if runtime == "bash" else "")
    assert [m["ns"] for m in answer.messages if "value" in m] == [code["ns"]]
    assert wire.run(code["print"]).out == "hi\n"
    entry = wire.ask("ls-sessions")["sessions"][0]
    assert (entry["runtime"], entry["cwd"]) == (runtime, str(site[1]))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", ["busy", "wait"])
def test_code_past_its_time_is_interrupted_and_the_state_is_kept(wire: Wire, runtime: str, kind: str) -> None:
    wire.run(CODE[runtime]["set"], runtime=runtime)
    answer = wire.run(CODE[runtime][kind], timeout_ms=300)
    assert (answer.status, answer["state"]) == (["done", "error", "timeout"], "kept")
    assert wire.run(CODE[runtime]["get"]).value == CODE[runtime]["got"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_errors_name_the_users_code_and_keep_the_session(wire: Wire, runtime: str) -> None:
    code = CODE[runtime]
    wire.run(code["set"], runtime=runtime)
    broken = wire.run(code["broken"])
    assert (broken.status, broken["ex"]["type"]) == (["done", "error"], "SyntaxError")
    if code["wrong"]:
        wrong = wire.run(code["wrong"])
        assert wrong["ex"]["type"] == "ReferenceError"
        assert all("driver" not in frame["file"] for frame in wrong["stacktrace"])
    assert "done" in wire.run(code["exit"]).status
    assert wire.run(code["get"]).value == code["got"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_names_are_completed_looked_up_listed_cloned_and_cleared(wire: Wire, runtime: str) -> None:
    code = CODE[runtime]
    wire.run(code["set"], runtime=runtime)
    found = wire.ask("complete", session="s", code=code["prefix"], pos=len(code["prefix"]))["completions"]
    assert code["whole"] in [each["text"] for each in found]
    assert wire.ask("lookup", session="s", symbol=code["whole"] if runtime == "bash" else "x")["found"] is True
    assert [each["name"] for each in wire.ask("ls-bindings", session="s")["bindings"]] == ["x"]
    cloned = wire.ask("clone", session="s", name="copy")
    assert (cloned.status, cloned["count"]) == (["done"], 1)
    assert wire.run(code["get"], session="copy").value == code["got"]
    assert wire.ask("clear-bindings", session="s")["count"] == 1
    assert wire.ask("ls-bindings", session="s")["bindings"] == []
    assert wire.run(code["get"], session="copy").value == code["got"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_reset_gives_a_fresh_interpreter_of_the_same_runtime(wire: Wire, runtime: str) -> None:
    before = wire.run(CODE[runtime]["set"], runtime=runtime)["epoch"]
    assert wire.ask("reset", session="s")["epoch"] == before + 1
    assert wire.ask("ls-bindings", session="s")["bindings"] == []
    assert wire.run(CODE[runtime]["print"]).out == "hi\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_can_be_used_for_one_throw_away_eval(wire: Wire, runtime: str) -> None:
    answer = wire.run(CODE[runtime]["print"], session=None, runtime=runtime)
    assert (answer.out, answer["ephemeral"]) == ("hi\n", True)


def test_bash_tells_exit_codes_as_values(wire: Wire) -> None:
    wire.run("true", runtime="bash")
    for code, value in (("false", "1"), ("(exit 7)", "7"), ("no_such_command", "127"), ("cd /; pwd", "0")):
        assert wire.run(code).value == value


def test_a_runtime_that_is_none_is_refused_by_name(wire: Wire) -> None:
    refused = wire.run("1", runtime="cobol")
    assert refused.status == ["done", "error", "runtime-not-allowed"]
    assert "bash" in refused["err"]
