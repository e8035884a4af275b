"""The python harness: interrupts stop what runs, and nothing else; and top-level await."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import threading; threading.Event().wait()",
        "import asyncio; await asyncio.sleep(60)",
        "import asyncio\nwhile True: await asyncio.sleep(0)",
        "async def f():\n    while True: pass\nawait f()",
        "import asyncio; asyncio.run(asyncio.sleep(60))",
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        "class A:\n    def __repr__(self): raise KeyboardInterrupt\n[A()] * 3",
        "import signal; signal.signal(2, signal.default_int_handler)\nwhile True: pass",
        "raise KeyboardInterrupt",
    ],
)
def test_an_interrupt_ends_the_eval_and_keeps_the_state(harness: Any, code: str) -> None:
    harness.eval("kept = 1")
    harness.start_eval("print('started')\n" + code)
    harness.until(lambda: b"started" in harness.stdout)
    harness.interrupt()
    answer = harness.result()
    assert answer["outcome"] == "interrupted", answer["traceback"]
    assert answer["ex"]["type"] == "KeyboardInterrupt"
    assert "replharness" not in answer["traceback"]
    assert harness.value("import asyncio\nawait asyncio.sleep(0, kept)") == "1"


def test_an_interrupt_that_comes_before_the_eval_begins_is_not_lost(harness: Any) -> None:
    for _ in range(300):
        harness.start_eval("while True: pass")
        harness.interrupt()
        assert harness.result()["outcome"] == "interrupted"


def test_a_late_interrupt_never_reaches_the_next_eval(harness: Any) -> None:
    for n in range(300):
        assert harness.value(f"{n} + 1") == str(n + 1)
        harness.interrupt()
        assert harness.value(f"x = {n}\nx") == str(n)


def test_a_storm_of_interrupts_gets_one_result_an_eval(harness: Any) -> None:
    # The code imports nothing: an import of its own that breaks off is python's business, ours must not.
    harness.eval("class Yield:\n    def __await__(self): yield")
    stop = threading.Event()
    sent = 0

    def storm() -> None:
        nonlocal sent
        chance = random.Random(7)
        while sent < 200 or not stop.is_set():
            os.kill(harness.process.pid, signal.SIGINT)
            sent += 1
            time.sleep(chance.random() * 0.002)

    thread = threading.Thread(target=storm)
    thread.start()
    outcomes = {"ok": 0, "interrupted": 0, "error": 0}
    codes = ("1 + 1", "sum(range(20_000))", "1 / 0", "print('x')", "for i in range(9): await Yield()")
    try:
        for n in range(500):
            outcomes[harness.eval(codes[n % len(codes)])["outcome"]] += 1
    finally:
        stop.set()
        thread.join()
    assert sum(outcomes.values()) == 500
    assert sent >= 200
    assert harness.process.poll() is None
    harness.value("import asyncio\n'quiet'")
    assert harness.value("await asyncio.sleep(0, 'again')") == "'again'"


def test_code_that_catches_the_interrupt_goes_on(harness: Any) -> None:
    harness.start_eval(
        "n = 0\nwhile n < 3:\n    try:\n        print(n)\n        while True: pass\n"
        "    except KeyboardInterrupt: n += 1\nn"
    )
    for n in range(3):
        harness.until(lambda n=n: harness.stdout.endswith(b"%d\n" % n))
        harness.signal()
    assert harness.result()["value"] == "3"


def test_await_and_its_kin_work_at_top_level(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python)
    harness.eval(
        "import asyncio\nasync def gen():\n    for i in range(3):\n        await asyncio.sleep(0)\n        yield i\n"
        "class C:\n    async def __aenter__(self): return 'in'\n    async def __aexit__(self, *a): print('out')"
    )
    assert harness.value("[i async for i in gen()]") == "[0, 1, 2]"
    assert harness.value("r = []\nasync for i in gen(): r.append(i)\nr") == "[0, 1, 2]"
    assert harness.value("async with C() as c: pass\nc") == "'in'"
    assert harness.value("t = asyncio.create_task(asyncio.sleep(0, 5))\nawait t") == "5"
    failed = harness.eval("async def bad():\n    raise KeyError('k')\nawait bad()")
    assert [(f["func"], f["line"]) for f in failed["stacktrace"]] == [("<module>", 3), ("bad", 2)]
    assert harness.eval("raise asyncio.CancelledError")["ex"]["type"] == "CancelledError"
    left = harness.eval("import sys\nasync def leave(): sys.exit()\nawait leave()")
    assert (left["outcome"], left["value"]) == ("ok", "None")
    assert harness.value("await asyncio.sleep(0, 'fine')") == "'fine'"
    assert harness.value("asyncio.run(asyncio.sleep(0, 'own loop'))") == "'own loop'"
    assert harness.value("await asyncio.sleep(0, 'ours')") == "'ours'"
    assert harness.hang_up() == 0
    assert bytes(harness.stderr) == b""


def test_tasks_and_context_variables_live_on_between_evals(harness: Any) -> None:
    harness.eval("import asyncio, contextvars\nv = contextvars.ContextVar('v', default=0)\nv.set(1)")
    assert harness.value("await asyncio.sleep(0)\nv.set(v.get() + 1)\nv.get()") == "2"
    assert harness.value("v.get()") == "2"
    harness.eval("q = asyncio.Queue()\nt = asyncio.create_task(q.get())\nawait asyncio.sleep(0)")
    assert harness.value("t.done()") == "False"
    assert harness.value("await q.put('through')\nawait t") == "'through'"


def test_an_interrupt_cancels_the_main_task_and_spares_the_others(harness: Any) -> None:
    harness.eval(
        "import asyncio\nbeats = []\nasync def beat():\n    while True:\n        beats.append(1)\n"
        "        await asyncio.sleep(0.001)\nasync def main():\n    try:\n"
        "        print('on'); await asyncio.sleep(60)\n    finally:\n        print('cleaned')"
    )
    harness.start_eval("b = asyncio.create_task(beat())\nawait main()")
    harness.until(lambda: b"on\n" in harness.stdout)
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"
    harness.until(lambda: b"cleaned\n" in harness.stdout)
    assert harness.value("n = len(beats)\nawait asyncio.sleep(0.05)\nlen(beats) > n, b.done()") == "(True, False)"
    harness.eval("b.cancel()")


def test_a_policy_of_the_user_is_used(harness: Any) -> None:
    harness.eval(
        "import asyncio, warnings\nwarnings.simplefilter('ignore')\nmade = []\n"
        "class P(asyncio.DefaultEventLoopPolicy):\n    def new_event_loop(self):\n"
        "        made.append(1)\n        return super().new_event_loop()\nasyncio.set_event_loop_policy(P())"
    )
    assert harness.value("await asyncio.sleep(0, len(made))") == "1"
    harness.eval("asyncio.get_event_loop().close()")
    assert harness.value("await asyncio.sleep(0, len(made))") == "2"
