"""The python harness: what it tells of exceptions, within bounds whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

DEEP = "def f(n):\n    return f(n + 1)\nf(0)"


def test_endless_recursion_is_told_in_bounds(harness: Any) -> None:
    answer = harness.eval("import sys; sys.setrecursionlimit(5000); f = lambda n: f(n + 1); f(0)")
    assert answer["ex"]["type"] == "RecursionError"
    assert len(answer["traceback"].encode()) < 16384
    assert len(answer["stacktrace"]) == 20
    answer = harness.eval("def a(n): return b(n + 1)\ndef b(n): return a(n + 1)\na(0)")
    assert " frames not shown\n" in answer["traceback"]
    assert answer["traceback"].count(", in ") == 20


def test_the_shown_frames_follow_the_limit(harness: Any) -> None:
    harness.send(op="assign", n=1, limits={"trace-frames": 5, "trace-bytes": 300})
    harness.frame()
    answer = harness.eval("def g(n):\n    return g(n - 1) if n else 1 / 0\ng(9)")
    assert [frame["func"] for frame in answer["stacktrace"]] == ["<module>", "g", "g", "g", "g"]
    assert len(answer["traceback"].encode()) <= 300
    assert "bytes not shown" in answer["traceback"]
    assert answer["traceback"].endswith("ZeroDivisionError: division by zero\n")


def test_chained_exceptions_are_told_without_frames_of_the_harness(harness: Any) -> None:
    answer = harness.eval(
        "def f():\n    return input()\ntry:\n    f()\nexcept EOFError as e:\n    raise ValueError('outer') from e"
    )
    text = answer["traceback"]
    assert "EOFError" in text
    assert "direct cause" in text
    assert "return input()" in text
    assert text.endswith("ValueError: outer\n")
    assert "replharness" not in text


def test_a_long_chain_of_causes_is_bounded(harness: Any) -> None:
    answer = harness.eval(
        "e = None\nfor i in range(3000):\n    n = ValueError(i)\n    n.__cause__ = e\n    e = n\nraise e"
    )
    assert answer["ex"] == {"type": "ValueError", "message": "2999"}
    assert "ValueError: 2998" in answer["traceback"]
    assert len(answer["traceback"].encode()) <= 16384
    assert harness.value("c = 0\nwhile e: e = e.__cause__; c += 1\nc") == "3000"


def test_a_cycle_of_contexts_ends(harness: Any) -> None:
    answer = harness.eval("a = ValueError('a'); b = ValueError('b')\na.__context__ = b; b.__context__ = a\nraise a")
    assert answer["ex"]["message"] == "a"


def test_a_group_shows_its_members(harness: Any) -> None:
    answer = harness.eval(
        "def f(n):\n    if n: f(n - 1)\n    else: 1 / 0\ntry: f(50)\nexcept Exception as e: inner = e\n"
        "raise ExceptionGroup('several', [inner, KeyError('k')])"
    )
    assert answer["ex"]["type"] == "ExceptionGroup"
    assert "KeyError: 'k'" in answer["traceback"]
    assert "32 frames not shown" in answer["traceback"]
    assert "replharness" not in answer["traceback"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError", "<str failed: RuntimeError>"),
        ("raise SystemExit", "<str failed: SystemExit>"),
        ("return 5", "<str failed: TypeError>"),
        ("return 'x' * 100_000", "x" * 4096 + "…[truncated]"),
        ("return '\\udcff'", "\\udcff"),
    ],
)
def test_a_str_that_fails_is_told_as_that(harness: Any, body: str, message: str) -> None:
    answer = harness.eval(f"class Bad(Exception):\n    def __str__(self): {body}\nraise Bad")
    assert (answer["outcome"], answer["ex"]) == ("error", {"type": "Bad", "message": message})
    assert len(answer["traceback"].encode()) <= 16384


def test_an_endless_str_of_an_exception_can_be_interrupted(harness: Any) -> None:
    harness.start_eval("class Bad(Exception):\n    def __str__(self):\n        while True: print('in')\nraise Bad")
    harness.until(lambda: b"in\n" in harness.stdout)
    harness.signal_until_answered()  # python's own traceback asks for str() again
    answer = harness.result()
    assert (answer["outcome"], answer["ex"]["type"]) == ("error", "Bad")  # the message depends on what was hit
    assert harness.value("1") == "1"


@pytest.mark.parametrize("code", ["raise GeneratorExit", "raise MemoryError", "raise BaseException('b')"])
def test_any_exception_at_all_is_an_answer(harness: Any, code: str) -> None:
    answer = harness.eval(code)
    assert (answer["outcome"], answer["value"]) == ("error", None)
    assert answer["ex"]["type"] in code


@pytest.mark.parametrize(
    "code",
    ["1 +", "x = 'open", "\tx\n  y", "return 1", "x\0y", "def f(:", "'\\ud800' \ud800", "(" * 500, "await", "é = §"],
)
def test_text_that_does_not_compile_is_an_error(harness: Any, code: str) -> None:
    answer = harness.eval(code)
    assert answer["outcome"] == "error"
    kinds = {"SyntaxError", "IndentationError", "ValueError", "UnicodeEncodeError", "MemoryError"}
    assert answer["ex"]["type"] in kinds
    assert harness.value("1") == "1"


def test_a_syntax_error_points_at_the_place(harness: Any) -> None:
    lines = harness.eval("x = 1\ny = = 2")["traceback"].splitlines()
    assert lines[0] == '  File "<work:1>", line 2'
    assert lines[1].strip() == "y = = 2"
    assert "^" in lines[2]
    assert lines[3] == "SyntaxError: invalid syntax"


def test_the_source_of_old_evals_is_dropped_before_the_new(harness: Any) -> None:
    filler = "#" * 1_500_000
    for n in range(7):
        harness.eval(f"def f{n}():\n    return {n} / 0\n{filler}")
    assert "return 6 / 0" in harness.eval("f6()")["traceback"]
    assert "return 0 / 0" not in harness.eval("f0()")["traceback"]
    assert harness.value("import linecache\nsum(e[0] for e in linecache.cache.values()) < 9 << 20") == "True"


def test_the_last_exception_is_kept_for_the_debugger(harness: Any) -> None:
    harness.eval("def f():\n    secret = 41\n    1 / 0\nf()")
    assert harness.value("import sys\nsys.last_value.args") == "('division by zero',)"
    assert harness.value("sys.last_traceback.tb_next.tb_frame.f_locals['secret']") == "41"
    assert harness.value("sys.last_traceback.tb_frame.f_code.co_filename") == "'<work:1>'"


@pytest.mark.parametrize(
    "sabotage",
    [
        "import builtins\nfor n in list(vars(builtins)):\n    if n[0] != '_': del builtins.__dict__[n]",
        "import sys; sys.modules.clear()",
        "import json; json.dumps = json.loads = json.JSONEncoder = None",
        "import sys; sys.setrecursionlimit(60)",
        "import gc; gc.disable()",
        "import os; os.write = os.read = os.getpid = os._exit = None",
        "import io, select, _thread; io.TextIOWrapper = select.poll = _thread.get_ident = None",
        "import os; os.close(1)",
        "import sys; sys.stdout = sys.stderr = sys.stdin = None",
        "import sys; sys.stdout.close(); sys.stderr.detach(); sys.stdin.detach()",
        "import traceback; traceback.TracebackException = 5",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "class S(str): __hash__ = None\nglobals().update({1: 2})",
    ],
)
def test_a_session_that_breaks_its_python_still_answers(start_harness: Callable[..., Any], sabotage: str) -> None:
    harness = start_harness()
    harness.eval(sabotage)
    assert harness.value("1 + 1") == "2"
    assert harness.eval("1 / 0")["ex"]["type"] == "ZeroDivisionError"
    assert harness.eval(DEEP)["outcome"] == "error"
    harness.start_eval("while 1: pass")
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"
    assert harness.hang_up() == 0
