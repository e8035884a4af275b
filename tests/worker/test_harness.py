"""The python harness: values, names, errors, and what it answers to the other frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECURSION = "def f(n):\n    return f(n + 1)\nf(0)"


def test_a_session_works_in_every_python(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python, ready=False)
    ready = harness.frame()
    assert (ready["t"], ready["runtime"], ready["pid"]) == ("ready", "python", harness.process.pid)
    assert harness.value("x = 20\nx * 2 + 2") == "42"
    assert harness.value("import asyncio\nawait asyncio.sleep(0, 'slept')") == "'slept'"
    assert harness.eval("print('out'); import sys; sys.stderr.write('err')")["outcome"] == "ok"
    failed = harness.eval("def f():\n    return 1 / 0\nf()")
    assert failed["ex"] == {"type": "ZeroDivisionError", "message": "division by zero"}
    assert [(f["func"], f["line"]) for f in failed["stacktrace"]] == [("<module>", 3), ("f", 2)]
    assert "return 1 / 0" in failed["traceback"]
    assert "replharness" not in failed["traceback"]
    deep = harness.eval(RECURSION)
    assert deep["ex"]["type"] == "RecursionError"
    assert " frames not shown" in deep["traceback"]
    assert "^" in harness.eval("1 +")["traceback"]
    assert harness.value("input('name? ')", stdin=True, lines=("you\n",)) == "'you'"
    assert harness.value("import inspect\ninspect.getsource(f)") == repr("def f(n):\n    return f(n + 1)\n")
    assert harness.value("import pickle\npickle.loads(pickle.dumps(f)) is f") == "True"
    harness.start_eval("while True: pass")
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"
    assert harness.value("_") == "True"
    assert harness.hang_up() == 0
    assert bytes(harness.stdout) == b"out\nname? "
    assert bytes(harness.stderr) == b"err"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("", "None"),
        ("   \n# a remark", "None"),
        ("x = 1", "None"),
        ("1 + 1;", "2"),
        ("for i in range(3): i", "None"),
        ("'a\\nb'", "'a\\nb'"),
        ("x = [1]; x.append(x); x", "[1, [...]]"),
        ("x = {}; x[1] = x; x", "{1: {...}}"),
        ("(1,), set(), frozenset({2}), {3}, b'x', ()", "((1,), set(), frozenset({2}), {3}, b'x', ())"),
        ("'\\ud800 ok'", "'\\ud800 ok'"),
        ("__name__", "'__main__'"),
        ("import sys; sys.argv, sys.path[0]", "([''], '')"),
        ("sorted(n for n in globals() if n[0] != '_')", "['sys']"),
    ],
)
def test_a_value_is_the_repr_of_the_last_expression(harness: Any, code: str, value: str) -> None:
    harness.eval("import sys")
    assert harness.value(code) == value


@pytest.mark.parametrize(
    "code",
    [
        "list(range(200_000))",
        "tuple(range(200_000))",
        "set(range(200_000))",
        "frozenset(range(200_000))",
        "{i: str(i) for i in range(200_000)}",
        "'it is \"said\" ' * 50_000",
        '"isn\'t" * 50_000',
        "b'\\x00\\xff\\'' * 50_000",
        "bytearray(b'\"\\'') * 50_000",
        "'\\u00e9\\U0001f600' * 50_000",
        "[[list(range(300))] * 100, {'k': ('v' * 9000, 1.5, None)}]",
        "['a' * 20_000, 1]",
    ],
)
def test_a_huge_builtin_is_cut_where_its_own_repr_would_be(harness: Any, code: str) -> None:
    answer = harness.eval(code)
    whole = repr(eval(code)).encode("utf-8", "backslashreplace")
    kept = answer["value"].encode().removesuffix("…[truncated]".encode())
    assert whole.startswith(kept)
    assert 10240 - 4 < len(kept) <= 10240
    assert 0 < answer["value-dropped"] <= len(whole) - len(kept)


def test_a_huge_list_is_not_rendered_whole(harness: Any) -> None:
    harness.eval("import time\nbig = list(range(10_000_000))")
    harness.eval("start = time.perf_counter()")
    assert harness.eval("big")["value-dropped"] > 10_000_000
    assert float(harness.value("time.perf_counter() - start")) < 1.0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError", "ValueError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("return 5", "TypeError"),
        ("return repr(self)", "RecursionError"),
        ("raise MemoryError", "MemoryError"),
    ],
)
def test_a_repr_that_fails_is_named_and_the_eval_stands(harness: Any, body: str, error: str) -> None:
    answer = harness.eval(f"class A:\n    def __repr__(self): {body}\n[A()]")
    assert (answer["outcome"], answer["value"], answer["repr-error"]) == ("ok", None, error)
    assert harness.value("1") == "1"


def test_a_repr_is_cut_between_characters(harness: Any) -> None:
    harness.send(op="assign", n=1, limits={"value-bytes": 5})
    assert harness.frame() == {"t": "assigned", "n": 1, "error": None}
    answer = harness.eval("class A:\n    def __repr__(self): return 'é' * 4 + '\\ud800'\nA()")
    assert (answer["value"], answer["value-dropped"]) == ("éé…[truncated]", 10)


def test_history_never_touches_a_name_of_the_user(harness: Any) -> None:
    assert harness.value("7") == "7"
    assert harness.value("8") == "8"
    assert harness.value("None, _, __") == "(None, 8, 7)"
    assert harness.value("None", history=True) == "None"
    assert harness.value("9", history=False) == "9"
    assert harness.value("_[1], ___") == "(8, 7)"
    assert harness.value("_ = 'mine'\n5") == "5"
    assert harness.value("_") == "'mine'"


def test_changed_names_are_those_bound_in_this_eval(harness: Any) -> None:
    assert harness.eval("b = 1\na = 2\n_c = 3\nimport os")["changed"] == ["a", "b", "os"]
    assert harness.eval("a = [1]\nb")["changed"] == ["a"]
    assert harness.eval("a.append(2)")["changed"] == []
    assert harness.eval("c = 1\n1 / 0")["changed"] == ["c"]
    many = harness.eval("globals().update({'n%03d' % i: i + 1000 for i in range(300)})")["changed"]
    assert many == [f"n{i:03d}" for i in range(100)]


def test_silent_has_no_value_and_no_repr(harness: Any) -> None:
    answer = harness.eval("class A:\n    def __repr__(self): print('asked')\nA()", silent=True)
    assert (answer["outcome"], answer["value"], answer["repr-error"]) == ("ok", None, None)
    assert harness.hang_up() == 0
    assert bytes(harness.stdout) == b""


@pytest.mark.parametrize("code", ["import sys; sys.exit()", "exit()", "quit(0)", "raise SystemExit"])
def test_leaving_ends_the_eval_and_not_the_session(harness: Any, code: str) -> None:
    answer = harness.eval("x = 1\n" + code)
    assert (answer["outcome"], answer["value"], answer["ex"]) == ("ok", "None", None)
    assert answer["hint"] == "sys.exit() ends the eval, not the session"
    assert harness.value("input()", stdin=True, lines=("still open\n",)) == "'still open'"


def test_leaving_with_a_code_is_an_error(harness: Any) -> None:
    for code, message in (("3", "3"), ("'no'", "no"), ("False or 1.5", "1.5")):
        answer = harness.eval(f"import sys; sys.exit({code})")
        assert (answer["outcome"], answer["ex"]) == ("error", {"type": "SystemExit", "message": message})
        assert answer["hint"]


def test_assign_sets_directory_environment_and_limits(harness: Any, tmp_path: Path) -> None:
    harness.send(op="assign", n=5, cwd=str(tmp_path), env={"COLOUR": "grün", "TZ": "Asia/Tokyo"}, limits={})
    assert harness.frame() == {"t": "assigned", "n": 5, "error": None}
    assert harness.value("import os, time\nos.getcwd(), os.environ['COLOUR'], time.timezone") == repr(
        (str(tmp_path), "grün", -9 * 3600)
    )
    harness.send(op="assign", n=6, cwd="/nowhere/at/all", env=None, limits=None)
    assert "FileNotFoundError" in harness.frame()["error"]
    assert harness.value("1") == "1"


def test_vars_lists_names_without_running_user_code(harness: Any) -> None:
    harness.eval(
        "import os\n"
        "class Meta(type):\n"
        "    @property\n"
        "    def __name__(cls): raise SystemExit\n"
        "    def __instancecheck__(cls, x): raise SystemExit\n"
        "class Nasty(metaclass=Meta):\n"
        "    def __getattribute__(self, name): raise SystemExit\n"
        "    def __len__(self): raise SystemExit\n"
        "    def __repr__(self): raise SystemExit\n"
        "    __class__ = property(lambda self: 1 / 0)\n"
        "class L(list):\n"
        "    def __len__(self): raise SystemExit\n"
        "nasty = Nasty(); own = L([1]); text = 'x' * 200; small = {'a': [1]}; pair = (1, 'b'); _hidden = 1\n"
        "big = list(range(1000)); number = 10 ** 1000"
    )
    harness.send(op="vars", n=3, max=200)
    answer = harness.frame()
    rows = {row.pop("name"): row for row in answer["vars"]}
    assert (answer["t"], answer["n"], answer["total"]) == ("vars", 3, len(rows))
    assert list(rows) == ["L", "Meta", "Nasty", "big", "nasty", "number", "own", "pair", "small", "text"]
    assert rows["nasty"] == {"type": "Nasty"}
    assert rows["own"] == {"type": "L"}
    assert rows["pair"] == {"type": "tuple", "size": 2, "preview": "(1, 'b')"}
    assert rows["small"] == {"type": "dict", "size": 1}
    assert rows["big"] == {"type": "list", "size": 1000}
    assert rows["number"] == {"type": "int"}
    assert rows["text"]["size"] == 200
    assert len(rows["text"]["preview"]) == 80
    harness.send(op="vars", n=4, max=2)
    answer = harness.frame()
    assert ([row["name"] for row in answer["vars"]], answer["total"]) == (["L", "Meta"], len(rows))


def test_nothing_of_an_eval_is_kept_alive_after_it(harness: Any) -> None:
    harness.eval(
        "import weakref, gc, sys\nclass Big: pass\nrefs = []\n"
        "def big():\n    b = Big(); refs.append(weakref.ref(b)); return b"
    )
    harness.eval("big()", history=False)
    harness.eval("async def f(): return big()\nawait f()", history=False)
    harness.eval("kept = big(); kept", history=False)
    harness.eval("del kept")
    harness.eval("def bad(x): 1 / 0\nbad(big())")
    harness.eval("import sys; sys.exit(big())")
    harness.eval("2 / 0")
    assert harness.value("gc.collect(); [r() for r in refs]", history=False) == "[None, None, None, None, None]"


def test_a_future_statement_holds_for_the_evals_after_it(harness: Any) -> None:
    harness.eval("def f(x: int): pass")
    assert harness.value("f.__annotations__") == "{'x': <class 'int'>}"
    harness.eval("from __future__ import annotations")
    assert harness.value("def f(x: int): pass\nf.__annotations__") == "{'x': 'int'}"


def test_a_module_in_the_directory_of_the_session_is_found(harness: Any, tmp_path: Path) -> None:
    (tmp_path / "bounds.py").write_text("here = 1")
    harness.send(op="assign", n=1, cwd=str(tmp_path))
    assert harness.frame()["error"] is None
    assert harness.value("import bounds\nbounds.here") == "1"
    assert harness.eval("1 / 0")["ex"]["type"] == "ZeroDivisionError"


def test_clear_forgets_the_names_and_keeps_the_session(harness: Any) -> None:
    harness.eval("a = 1\nb = 2\n_c = 3\n'kept'")
    harness.send(op="clear", n=9)
    assert harness.frame() == {"t": "cleared", "n": 9, "count": 2}
    assert harness.value("[n for n in globals() if not n.startswith('__')]", history=False) == "[]"
    assert harness.eval("_")["ex"]["type"] == "NameError"
    assert harness.value("__name__, len([1])") == "('__main__', 1)"


def test_a_result_has_exactly_the_fields_of_the_contract(harness: Any) -> None:
    answer = harness.eval("1")
    assert json.dumps(answer) == json.dumps(
        {
            "t": "result",
            "n": 1,
            "outcome": "ok",
            "value": "1",
            "type": "int",
            "value-dropped": 0,
            "repr-error": None,
            "changed": [],
            "ex": None,
            "stacktrace": [],
            "traceback": None,
            "hint": None,
        }
    )
