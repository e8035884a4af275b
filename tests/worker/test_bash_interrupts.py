"""An interrupt stops whatever a bash session runs, and touches nothing else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

BUSY = [
    "while :; do :; done",
    "sleep 100",
    "sleep 100; echo never",
    "sleep 100 || echo never",
    "sleep 100 | cat",
    "cat /dev/zero | tr a b >/dev/null",
    "while :; do echo; done | cat >/dev/null",
    "x=$(sleep 100)",
    "x=$(while :; do :; done)",
    "( sleep 100; echo never )",
    "( while :; do :; done )",
    "sleep 100 & wait",
    "sleep 100 & wait $!",
    "f() { local y=1; g; }; g() { while :; do sleep 100; done; }; f; echo never",
    "cat <(sleep 100)",
    "for i in {1..1000000}; do /bin/true; done",
    "eval 'eval \"sleep 100\"; echo never'; echo never",
    "trap 'echo exit' EXIT; sleep 100; trap - EXIT",
    "if sleep 100; then echo never; else echo never; fi",
    "set -e; sleep 100",
    "while :; do bash -c 'trap \"exit 3\" INT; sleep 100 & wait'; done",
    "while :; do python3 -c 'import time\ntry: time.sleep(100)\nexcept KeyboardInterrupt: pass'; done",
    "mapfile -t lines < <(sleep 100)",
    "until false; do read -t 0.01 x < <(sleep 1); done",
    "select x in a b; do :; done < <(sleep 100)",
    "coproc sleep 100; wait",
]


@pytest.mark.parametrize("code", BUSY)
def test_an_interrupt_stops(bash: Any, code: str) -> None:
    bash.value("x=kept; arr=(1 2); shopt -s nullglob")
    answer = bash.interrupted(code)
    assert (answer["outcome"], answer["ex"]["type"]) == ("interrupted", "KeyboardInterrupt")
    assert "never" not in bash.stdout.decode()
    assert bash.out("set +e; echo ${arr[1]}; shopt nullglob; echo whole >&2") == "2\nnullglob       \ton\n"
    assert bash.stderr.decode().endswith("whole\n")


def test_an_interrupt_stops_a_sourced_file(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "lib.sh").write_text("lib() {\n  while :; do :; done\n}\nlib\necho never\n")
    assert bash.interrupted(f". {tmp_path}/lib.sh; echo never")["outcome"] == "interrupted"
    assert "never" not in bash.out("echo on")


def test_an_interrupt_stops_reading(bash: Any) -> None:
    bash.start_eval("echo begun; read x; echo never", stdin=True)
    bash.printed("begun")
    assert bash.frame()["t"] == "need-input"
    assert bash.stopped()["outcome"] == "interrupted"
    assert bash.out('read x; echo "<$x>"', lines=("fresh\n",), stdin=True) == "<fresh>\n"


def test_an_interrupt_undoes_redirections(bash: Any, tmp_path: Path) -> None:
    bash.start_eval(f"{{ echo in; echo begun >/proc/$$/fd/9; sleep 100; }} 9>&1 >{tmp_path}/file 2>&1 <{os.devnull}")
    bash.printed("begun")
    assert bash.stopped()["outcome"] == "interrupted"
    assert bash.out("echo out; nosuchcommand 2>/dev/null") == "out\n"
    assert (tmp_path / "file").read_text() == "in\n"


def test_names_that_an_interrupted_eval_changed_are_told(bash: Any) -> None:
    bash.start_eval("y=1; echo set; while :; do :; done")
    bash.printed("set")
    assert bash.stopped()["changed"] == ["y"]


def test_background_jobs_survive(bash: Any) -> None:
    bash.value("sleep 100 & pid=$!; until [[ $(</proc/$pid/comm) == sleep ]]; do :; done")
    bash.interrupted("sleep 100")
    assert bash.out("kill -0 $pid && echo lives; kill $pid; wait $pid; echo $?") == "lives\n143\n"


def test_an_interrupt_before_the_eval_has_begun_counts(bash: Any) -> None:
    for _ in range(30):
        bash.start_eval("sleep 100; echo never")
        assert bash.stopped()["outcome"] == "interrupted"
    assert bash.out("echo on") == "on\n"


@pytest.mark.parametrize(
    "code", ["sleep 100", "while :; do sleep 100; done", "bash -c 'trap \"exit 3\" INT; sleep 100 & wait'"]
)
def test_errexit_works_after_interrupts(bash: Any, code: str) -> None:
    for _ in range(8):
        assert bash.interrupted(code)["outcome"] == "interrupted"
        answer = bash.eval("set -e; (exit 3); echo never")
        assert (answer["value"], answer["hint"] is None) == ("3", False)
        bash.value("set +e")


def test_signals_while_idle_change_nothing(bash: Any) -> None:
    bash.value("x=kept")
    for _ in range(50):
        bash.child.interrupt()
        bash.pump(0.0)
    assert bash.out("echo $x") == "kept\n"


def test_a_late_signal_never_hits_the_next_eval(bash: Any) -> None:
    for count in range(60):
        bash.start_eval(f"x={count}")
        if count % 2:
            bash.pump(0.001)
        bash.until(lambda: bool(bash.frames))
        bash.child.interrupt()  # the result is there: too late for this one
        assert bash.result()["outcome"] in ("ok", "interrupted")
        assert bash.value("y=$x; z=1; true") == "0"


def test_a_storm_of_signals_yields_one_result_each(bash: Any) -> None:
    for _ in range(10):
        bash.start_eval("while :; do :; done")
        bash.interrupt()  # the worker says so first: bash alone may forget what ended a loop
        deadline = time.monotonic() + 20
        while not bash.frames:
            assert time.monotonic() < deadline
            bash.child.interrupt()
            bash.pump(0.002)
        assert bash.result()["outcome"] == "interrupted"
    assert bash.frames == []
    assert bash.out("echo on") == "on\n"


def test_a_trap_on_int_is_the_users(bash: Any) -> None:
    bash.start_eval("trap 'echo caught; done=1' INT; echo begun; until [[ $done ]]; do sleep 0.01; done; trap - INT")
    bash.printed("begun")
    bash.interrupt()
    assert bash.result()["outcome"] == "ok"
    assert "caught" in bash.stdout.decode()
    assert bash.interrupted("sleep 100")["outcome"] == "interrupted"


def test_a_signal_that_the_code_sends_itself_is_an_interrupt_too(bash: Any) -> None:
    assert bash.eval("kill -INT $$; echo never")["outcome"] == "interrupted"
    assert bash.out("echo on") == "on\n"


def test_sigterm_does_not_end_a_session(bash: Any) -> None:
    assert bash.out("kill $$; echo on") == "on\n"


def test_the_worker_signals_the_group_and_the_interpreter(bash: Any) -> None:
    bash.start_eval("sh -c 'echo $$; exec sleep 100'; echo never")
    bash.until(lambda: b"\n" in bash.stdout)
    pid = int(bash.stdout)
    assert bash.stopped()["outcome"] == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
