"""Stacks of running code: requested from real interpreters, and parsed from any bytes."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replworker.runtimes import frames
from replworker.runtimes.commands import build_command
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.stacks import MAX_BYTES, parse

WAIT_S = 20.0
HEAD = b"Current thread 0x00007f0000000001 (most recent call first):\n"
LINES = st.sampled_from(
    [
        HEAD,
        b"Thread 0x1 [a name] (most recent call first):\n",
        b'  File "<work:1>", line 3 in f\n',
        b"  ...\n",
        b"\xff",
        b'  File "',
        b'", line ',
        b"in g\n",
        b"\\u00e9",
        b"\\ud800",
        b"\\U0011ffff",
        b"???",
        b"999999999",
        b'  File "/a/replworker/runtimes/python/replharness/run.py", line 1 in run\n',
        b"  File ???, line ??? in ???\n",
    ]
)


def read_stack(fd: int, whole: Callable[[bytes], bool]) -> list[dict[str, Any]]:
    data, deadline = b"", time.monotonic() + WAIT_S
    while not whole(data):
        assert select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0], data
        data += os.read(fd, 65536)
    return parse(data)


def seen(*words: bytes) -> Callable[[bytes], bool]:
    return lambda data: all(word in data for word in words)


def wait_for(harness: Any, word: bytes) -> None:
    harness.until(lambda: word in harness.stdout)


def test_a_running_eval_shows_its_stack_and_goes_on(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python)
    harness.start_eval(
        "import threading\ndef wörk(event):\n    event.wait(60)\n"
        "event = threading.Event(); thread = threading.Thread(target=wörk, args=(event,), daemon=True); thread.start()\n"
        "def loop():\n    print('in', flush=True)\n    while not asked: pass\n    return 'went on'\n"
        "asked = []; threading.Timer(60, print).cancel(); loop()"
    )
    wait_for(harness, b"in")
    os.kill(harness.process.pid, signal.SIGUSR1)
    threads = read_stack(harness.trace, seen(b"in _bootstrap\n", b"in serve\n"))
    assert threads[0]["thread"] == "main"
    assert [(f["func"], f["file"]) for f in threads[0]["frames"]] == [("<module>", "<work:1>"), ("loop", "<work:1>")]
    assert threads[0]["frames"][1]["line"] in (6, 7)  # still in print(), or in the loop
    assert {"func": "wörk", "file": "<work:1>", "line": 3} in threads[1]["frames"]
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"
    assert harness.value("1") == "1"


def test_a_long_call_into_c_shows_where_it_was_made(harness: Any) -> None:
    harness.start_eval("def deep():\n    print('in', flush=True); return sum(iter(int, 1))\ndeep()")
    wait_for(harness, b"in")
    os.kill(harness.process.pid, signal.SIGUSR1)
    (thread,) = read_stack(harness.trace, seen(b"in serve\n"))
    assert thread["frames"][-1] == {"func": "deep", "file": "<work:1>", "line": 2}


def test_a_storm_of_questions_fills_the_pipe_and_harms_nothing(harness: Any) -> None:
    harness.start_eval("print('in', flush=True)\nfor i in range(10**6): pass\n'done'")
    wait_for(harness, b"in")
    for _ in range(2000):
        os.kill(harness.process.pid, signal.SIGUSR1)
    assert harness.result()["value"] == "'done'"


@pytest.fixture
def child() -> Iterator[InterpreterProcess]:
    started = InterpreterProcess(build_command("python", sys.executable, {"PATH": os.environ["PATH"]}))
    yield started
    started.kill()
    assert select.select([started.exit_fd], [], [], WAIT_S)[0]
    assert started.poll_exit() is not None
    started.close()


def next_event(child: InterpreterProcess) -> frames.FrameEvent:
    while True:
        assert select.select([child.control], [], [], WAIT_S)[0]
        for body in child.receive():
            return frames.decode(body)


def test_a_child_tells_its_stack_and_takes_descriptors(child: InterpreterProcess, tmp_path: Path) -> None:
    ready = next_event(child)
    assert isinstance(ready, frames.ReadyFrame)
    assert {"vars", "clear", "complete", "lookup", "dump", "restore", "packages", "checkpoint", "stack"} <= {*ready.can}
    child.send(frames.encode(frames.EvalFrame(1, "kept = [1, 2]\ninput()", "<w:1>", False, True, False)))
    assert isinstance(next_event(child), frames.NeedInputFrame)
    child.request_stack()
    (thread,) = read_stack(child.trace, seen(b"in serve\n"))
    assert thread["frames"] == [{"func": "<module>", "file": "<w:1>", "line": 2}]
    child.write_stdin(b"\n")
    assert isinstance(next_event(child), frames.ResultFrame)
    child.send(frames.encode(frames.CompleteFrame(2, "kep", 3, 10)))
    completed = next_event(child)
    assert completed == frames.CompletionsFrame(2, 0, [frames.Completion("kept", "instance")])
    with open(tmp_path / "snapshot", "w+b") as file:
        child.send(frames.encode(frames.DumpFrame(3, 1 << 20)), file.fileno(), 3)
        dumped = next_event(child)
        assert isinstance(dumped, frames.DumpedFrame)
        assert (dumped.error, dumped.count, dumped.bytes) == (None, 1, os.fstat(file.fileno()).st_size)
        child.send(frames.encode(frames.RestoreFrame(4)), file.fileno(), 4)
        restored = next_event(child)
    assert isinstance(restored, frames.DumpedFrame)
    assert (restored.error, restored.count) == (None, 1)


def test_threads_are_read_with_their_frames_in_order() -> None:
    text = (
        b"Thread 0x00007f0000000002 [worker one] (most recent call first):\n"
        b'  File "/lib/threading.py", line 9 in wait\n'
        b'  File "a", line 1 in \\"b", line 22 in outer.<locals>.f\n'
        b"\n" + HEAD + b'  File "caf\\xe9\\u20ac.py", line 2 in inner\n  File "<work:3>", line 1 in <module>\n'
        b'  File "/x/replworker/runtimes/python/replharness/run.py", line 5 in execute\n'
        b'  File "/x/replworker/runtimes/python/harness.py", line 23 in <module>\n'
    )
    assert parse(text) == [
        {
            "thread": "main",
            "frames": [
                {"func": "<module>", "file": "<work:3>", "line": 1},
                {"func": "inner", "file": "café€.py", "line": 2},
            ],
        },
        {
            "thread": "worker one",
            "frames": [
                {"func": "outer.<locals>.f", "file": 'a", line 1 in \\"b', "line": 22},
                {"func": "wait", "file": "/lib/threading.py", "line": 9},
            ],
        },
    ]


def test_what_is_read_of_a_stack_is_bounded() -> None:
    frame = b'  File "' + b"p" * 5000 + b'", line 7 in ' + b"f" * 5000 + b"\n"
    (thread,) = parse(HEAD + frame * 150)
    assert len(thread["frames"]) == 100
    assert {(len(f["file"]), len(f["func"])) for f in thread["frames"]} == {(1024, 256)}
    head = b"Thread 0x%d (most recent call first):\n"
    assert len(parse(b"".join(head % i + frame for i in range(101)))) == 100
    started = time.process_time()
    for hostile in (b'", line 1 in ', b"Thread 0x1 [", b'  File "', b"\\x", b"]"):
        parse(HEAD + hostile * (2 * MAX_BYTES // len(hostile)))
    assert time.process_time() - started < WAIT_S


@given(st.binary(max_size=300) | st.lists(LINES | st.binary(max_size=5), max_size=30).map(b"".join))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    for thread in parse(data):
        assert set(thread) == {"thread", "frames"}
        assert thread["frames"]
        for frame in thread["frames"]:
            assert set(frame) == {"func", "file", "line"}
            (frame["func"] + frame["file"] + thread["thread"]).encode()
            assert frame["line"] >= 0
