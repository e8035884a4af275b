"""Input, background jobs and output of a bash session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def test_read_asks_for_input(bash: Any) -> None:
    assert bash.out('read -r x; echo "<$x>"', lines=("a \\b\n",), stdin=True) == "<a \\b>\n"
    assert bash.input_requests == 1


def test_each_read_that_waits_asks(bash: Any) -> None:
    assert bash.out("read a; read b; echo $a$b", lines=("1\n", "2\n"), stdin=True) == "12\n"
    assert bash.input_requests == 2


def test_input_that_is_there_is_not_asked_for(bash: Any) -> None:
    bash.start_eval("sleep 0.2; read a; read b; echo $a$b", stdin=True)
    bash.child.write_stdin(b"1\n2\n")
    assert bash.result()["value"] == "0"
    assert (bash.stdout.decode(), bash.input_requests) == ("12\n", 0)


def test_read_keeps_its_ways(bash: Any) -> None:
    assert bash.out("IFS=: read -r a b; echo $a,$b", lines=("1:2:3\n",), stdin=True) == "1,2:3\n"
    assert (
        bash.out("f() { local x; read x; echo in $x; }; x=out; f; echo $x", lines=("i\n",), stdin=True) == "in i\nout\n"
    )
    assert bash.out("read -a arr; echo ${arr[1]}", lines=("1 2\n",), stdin=True) == "2\n"
    assert (
        bash.out("read -n 2 -p 'Name: ' x; echo $x; read rest; echo $rest", lines=("abc\n",), stdin=True) == "ab\nc\n"
    )
    assert bash.out("read -t 0.01 x; echo $?", lines=("",), stdin=True) == "142\n"
    assert bash.out("set -u; read; echo $REPLY; set +u", lines=("r\n",), stdin=True) == "r\n"


def test_read_asks_where_few_files_may_be_open(bash: Any) -> None:
    assert bash.out("ulimit -n 256; echo set") == "set\n"
    assert bash.out("read x; echo got $x", lines=("few\n",), stdin=True) == "got few\n"
    assert bash.input_requests == 1


def test_reading_elsewhere_asks_nobody(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "two").write_text("1\n2\n")
    code = f"read a < {tmp_path}/two; read b <<< three; echo four | while read c; do echo $a $b $c; done; "
    code += f"while read d; do echo $d; done < {tmp_path}/two; exec 5<{tmp_path}/two; read -u 5 e; echo $e; read f < <(echo g); echo $f"
    assert bash.out(code, stdin=True) == "1 three four\n1\n2\n1\ng\n"
    assert bash.input_requests == 0


def test_a_read_in_a_subshell_asks_too(bash: Any) -> None:
    assert bash.out("x=$(read y; echo $y); echo got $x", lines=("sub\n",), stdin=True) == "got sub\n"
    assert bash.input_requests == 1


def test_a_command_reads_what_is_given(bash: Any) -> None:
    bash.start_eval("head -n 1; read x; echo $x", stdin=True)
    bash.child.write_stdin(b"for head\n")
    bash.until(lambda: bool(bash.frames) or b"head" in bash.stdout)
    bash.child.write_stdin(b"for read\n")
    while bash.frames and bash.frames[0]["t"] == "need-input":
        bash.frame()
    assert bash.result()["value"] == "0"
    assert b"for head\n" in bash.stdout


def test_without_input_stdin_is_empty(bash: Any) -> None:
    bash.child.write_stdin(b"kept\n")
    assert bash.out("read x; echo $? ${x:-none}; cat; readlink /proc/self/fd/0") == "1 none\n/dev/null\n"
    assert bash.out("read x; echo $x", stdin=True) == "kept\n"
    assert bash.input_requests == 0


def test_another_stdin_holds_for_its_eval(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from file\n")
    assert bash.out(f"exec <{tmp_path}/file; cat", stdin=True) == "from file\n"
    assert bash.out("read x; echo $x", lines=("from worker\n",), stdin=True) == "from worker\n"


def test_a_background_job_does_not_hold_its_eval(bash: Any) -> None:
    assert bash.out("sleep 100 & echo $(( $! > 0 ))") == "1\n"
    assert bytes(bash.stderr) == b""
    assert bash.out("jobs -r | wc -l; kill %1; wait %1 2>/dev/null; echo $?") == "1\n143\n"
    assert bytes(bash.stderr) == b""


def test_a_background_job_can_be_waited_for_later(bash: Any) -> None:
    bash.value("(exit 3) & sleep 0.1")
    assert bash.out("wait $!; echo $?") == "3\n"


def test_jobs_that_end_are_not_announced_and_leave_no_zombie(bash: Any) -> None:
    bash.value("for i in 1 2 3; do sleep 0.01 & done")
    bash.value("sleep 0.2; true")
    assert bash.out("ps -o stat= --ppid $$ | grep -c Z") == "0\n"
    assert bytes(bash.stderr) == b""
    bash.value("sleep 0.1; jobs >/dev/null")
    assert bash.out("jobs") == ""


def test_foreground_commands_of_earlier_evals_are_no_jobs(bash: Any) -> None:
    bash.value("ls >/dev/null; (true)")
    bash.interrupted("(sleep 100)")
    assert bash.out("jobs") == ""


def test_a_background_job_prints_when_it_likes(bash: Any) -> None:
    bash.value("(sleep 0.1; echo later) & disown")
    bash.until(lambda: b"later" in bash.stdout)
    assert bash.out("echo on").endswith("on\n")


def test_a_background_subshell_does_not_answer_for_the_session(bash: Any) -> None:
    bash.value("{ echo up; while :; do :; done; } & pid=$!")
    bash.printed("up")
    for _ in range(5):
        bash.interrupted("sleep 100")
    assert bash.out("kill -9 $pid; wait $pid 2>/dev/null; echo $?") == "137\n"


def test_a_coprocess_works(bash: Any) -> None:
    bash.value("coproc up { while read -r line; do echo ${line^^}; done; }")
    assert (
        bash.out('echo word >&"${up[1]}"; read -r x <&"${up[0]}"; echo $x; kill $up_PID; wait $up_PID; true')
        == "WORD\n"
    )


def test_tmout_does_not_end_an_idle_session(bash: Any) -> None:
    bash.value("TMOUT=1")
    bash.interrupted("TMOUT=1; sleep 100")
    end = time.monotonic() + 1.6  # past the time after which bash would log out
    while time.monotonic() < end:
        bash.pump(end - time.monotonic())
    assert bash.out("echo $TMOUT") == "1\n"
