"""The python harness: what user code prints and reads, and to which eval it belongs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

TICKER = """
import threading, sys
go, stop = threading.Event(), threading.Event()
def tick():
    while not stop.is_set():
        go.wait(); go.clear()
        print('tick', end=''); print(); said.set()
said = threading.Event()
thread = threading.Thread(target=tick, daemon=True); thread.start()
"""


def test_ten_megabytes_in_one_print_arrive_whole(harness: Any) -> None:
    harness.start_eval("print('x' * 10_000_000 + 'end')")
    assert harness.result()["outcome"] == "ok"
    harness.until(lambda: harness.stdout.endswith(b"end\n"))
    assert bytes(harness.stdout) == b"x" * 10_000_000 + b"end\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a', end='\\r')", b"a\r"),
        ("print('line')", b"line\n"),
        ("print('part', end='', flush=True)", b"part"),
        ("sys.stdout.buffer.write(b'raw'); sys.stdout.flush()", b"raw"),
        ("sys.stdout.writelines(['a', '\\n'])", b"a\n"),
        ("subprocess.run('echo child', shell=True)", b"child\n"),
        ("os.write(sys.stdout.fileno(), b'fd')", b"fd"),
        ("print('\\udcff é')", "\\udcff é\n".encode()),
    ],
)
def test_text_leaves_while_the_eval_still_runs(harness: Any, code: str, text: bytes) -> None:
    harness.eval("import os, subprocess, sys")
    harness.start_eval(code + "\nwhile True: pass")
    harness.until(lambda: bytes(harness.stdout) == text)
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"


def test_a_partial_line_leaves_before_the_result(harness: Any) -> None:
    harness.eval("import sys\nprint('half', end=''); sys.stderr.write('other')")
    assert harness.hang_up() == 0
    assert (bytes(harness.stdout), bytes(harness.stderr)) == (b"half", b"other")


@pytest.mark.parametrize(
    "code",
    ["sys.stdout.close()", "sys.stdout = None", "sys.stdout.detach()", "sys.stdout = io.StringIO()", "del sys.stdout"],
)
def test_the_next_eval_has_its_streams_back(harness: Any, code: str) -> None:
    harness.eval("import io, sys")
    harness.eval(code)
    assert harness.value("print('here'); sys.stdout is sys.__stdout__, sys.stdout.isatty()") == "(True, False)"
    harness.until(lambda: bytes(harness.stdout) == b"here\n")


def test_a_flush_that_never_ends_can_be_interrupted(harness: Any) -> None:
    harness.start_eval(
        "import sys, os\nclass F:\n    def write(self, s): pass\n    def flush(self):\n"
        "        os.write(1, b'in')\n        while True: pass\nsys.stdout = F()"
    )
    harness.until(lambda: b"in" in harness.stdout)
    harness.signal()
    assert harness.result()["outcome"] == "ok"
    assert harness.value("1") == "1"


def test_a_thread_of_an_earlier_eval_prints_as_late(harness: Any) -> None:
    harness.eval(TICKER + "go.set(); said.wait(10)")
    harness.until(lambda: bytes(harness.stdout) == b"tick\n")
    harness.eval("said.clear(); go.set(); print('mine'); said.wait(10)")
    harness.until(lambda: bytes(harness.late) == b"tick\n")
    harness.eval("new = threading.Thread(target=print, args=('new',)); new.start(); new.join()")
    harness.until(lambda: bytes(harness.stdout) == b"tick\nmine\nnew\n")
    assert bytes(harness.late) == b"tick\n"


def test_a_thread_prints_between_evals_as_late(harness: Any) -> None:
    harness.eval("import threading\nt = threading.Timer(0.2, print, ('é' * 50_000,)); t.start()")
    harness.until(lambda: len(harness.late) == 100_001)
    assert bytes(harness.stdout) == b""


def test_a_new_thread_is_not_late_though_an_ident_comes_again(harness: Any) -> None:
    harness.eval("import threading, _thread\nhold = threading.Event(); old = threading.Thread(target=hold.wait)")
    harness.eval("old.start(); ident = old.ident")
    harness.eval(
        "hold.set(); old.join()\n"
        "for _ in range(20):\n    t = threading.Thread(target=print, args=('fresh',)); t.start(); t.join()"
    )
    harness.until(lambda: bytes(harness.stdout) == b"fresh\n" * 20)
    assert bytes(harness.late) == b""


def test_input_asks_only_when_nothing_is_there(harness: Any) -> None:
    assert harness.value("input('one? ')", lines=("first\nsecond\n",), stdin=True) == "'first'"
    assert harness.input_requests == 1
    assert harness.value("input()", stdin=True) == "'second'"
    assert harness.input_requests == 1
    os.write(harness.stdin_fd, b"third\n")
    assert harness.value("input()", stdin=True) == "'third'"
    assert harness.input_requests == 1
    harness.until(lambda: bytes(harness.stdout) == b"one? ")


def test_input_in_pieces_is_asked_for_until_the_line_ends(harness: Any) -> None:
    answer = harness.eval("import sys\nsys.stdin.readline()", lines=("ha", "lf\n"), stdin=True)
    assert answer["value"] == "'half\\n'"
    assert harness.input_requests == 2


def test_without_stdin_every_read_is_at_the_end(harness: Any) -> None:
    os.write(harness.stdin_fd, b"waiting\nand more\n")
    harness.eval("from sys import stdin")
    code = "stdin.read(), stdin.readline(), list(stdin), stdin.buffer.read(), stdin.readlines()"
    assert harness.value(code) == "('', '', [], b'', [])"
    assert harness.eval("input()")["ex"]["type"] == "EOFError"
    assert harness.value("input()", stdin=True) == "'waiting'"
    assert harness.eval("input()")["ex"]["type"] == "EOFError"
    assert harness.value("input()", stdin=True) == "'and more'"
    assert harness.input_requests == 0


def test_an_interrupt_ends_input_and_the_next_works(harness: Any) -> None:
    harness.start_eval("input('? ')", stdin=True)
    assert harness.frame() == {"t": "need-input", "n": harness.number}
    harness.interrupt()
    answer = harness.result()
    assert answer["outcome"] == "interrupted"
    assert "replharness" not in answer["traceback"]
    assert harness.value("input()", lines=("again\n",), stdin=True) == "'again'"


def test_a_closed_stdin_is_the_end_of_input(harness: Any) -> None:
    harness.process.stdin.close()
    assert harness.eval("input()", stdin=True)["ex"]["type"] == "EOFError"


def test_a_thread_that_waits_for_input_does_not_hold_up_the_next_eval(harness: Any) -> None:
    harness.eval("import threading\ngot = []\ndef ask():\n    got.append(__import__('sys').stdin.readline())")
    harness.start_eval("t = threading.Thread(target=ask); t.start(); t.join(0.3)", stdin=True)
    assert harness.frame()["t"] == "need-input"
    harness.result()
    assert harness.value("input()", lines=("mine\n",), stdin=True) == "'mine'"
    assert harness.value("t.join(10); got") == "['']"


def test_a_fork_that_returns_ends_without_a_word(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python)
    assert int(harness.value("import os\npid = os.fork()\npid")) > 0
    assert harness.value("os.waitpid(pid, 0)[1]") == "0"
    harness.eval("pid = os.fork()\nif not pid: print('child'); 1 / 0")
    assert harness.value("os.waitpid(pid, 0)[1] >> 8") == "1"
    harness.until(lambda: b"ZeroDivisionError" in harness.stderr)
    harness.eval("pid = os.fork()\nif not pid: raise SystemExit(7)")
    assert harness.value("os.waitpid(pid, 0)[1] >> 8") == "7"
    harness.eval("pid = os.fork()\nif not pid: input()", stdin=True)
    assert harness.value("os.waitpid(pid, 0)[1] >> 8") == "1"
    assert harness.value("'the only answer'") == "'the only answer'"
    assert harness.input_requests == 0
    harness.until(lambda: bytes(harness.stdout) == b"child\n")


def test_a_fork_that_lives_on_does_not_keep_the_channel(harness: Any) -> None:
    harness.eval("import os, time\npid = os.fork()\nif not pid:\n    time.sleep(60)")
    pid = int(harness.value("pid"))
    harness.control.shutdown(1)
    assert harness.process.wait(10) == 0
    os.kill(pid, signal.SIGKILL)
    assert harness.control.recv(1) == b""


def test_multiprocessing_by_fork_works(harness: Any) -> None:
    harness.eval("import multiprocessing as mp\ndef square(x):\n    print('in', x)\n    return x * x")
    assert harness.value("with mp.get_context('fork').Pool(2) as p: r = p.map(square, range(4))\nr") == "[0, 1, 4, 9]"
    code = "p = mp.get_context('spawn').Process(target=square, args=(1,)); p.start(); p.join(20); p.exitcode"
    assert harness.value(code) == "1"
    harness.until(lambda: b"AttributeError" in harness.stderr)
