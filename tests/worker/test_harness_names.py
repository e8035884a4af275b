"""The python harness: completions and lookups, made without running anything of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAPS = """
import collections, functools, os, os.path as osp
class Meta(type):
    def __getattr__(cls, name): ran.append(name); raise SystemExit
    def __dir__(cls): ran.append('dir'); raise SystemExit
    def __instancecheck__(cls, x): ran.append('check'); raise SystemExit
    @property
    def __doc__(cls): ran.append('doc'); raise SystemExit
ran = []
class Trap(metaclass=Meta):
    '''What a trap is.'''
    shared = 1
    def method(self, alpha, /, beta: int = 2, *rest, gamma=(), **more): 'Does it.'
    @classmethod
    def made(cls, size): pass
    @staticmethod
    def loose(width): pass
    @property
    def prop(self): ran.append('prop'); raise SystemExit
    def __getattr__(self, name): ran.append(name); raise SystemExit
    def __getattribute__(self, name): ran.append(name); raise SystemExit
    def __dir__(self): ran.append('dir'); raise SystemExit
    def __eq__(self, other): ran.append('eq'); raise SystemExit
    __hash__ = None
class Slotted:
    __slots__ = ('first', 'second')
class Held(dict):
    def keys(self): ran.append('keys'); raise SystemExit
    def __iter__(self): ran.append('iter'); raise SystemExit
trap = Trap(); object.__setattr__(trap, 'inst', 'text')
slotted = Slotted(); slotted.first = [1]
held = Held(pre_one=1, pre_two=2); held[3] = held["it's"] = 0
def plain(alpha, beta, /, gamma, *, delta=None): 'Plain.'
@functools.wraps(plain)
def wrapper(*args, **kwargs): pass
pair = collections.namedtuple('pair', 'left right')(1, 2)
"""


def texts(harness: Any, code: str, pos: int | None = None, most: int = 100) -> list[str]:
    answer = harness.ask("complete", code=code, pos=len(code) if pos is None else pos, max=most)
    assert answer["t"] == "completions"
    return [item["text"] for item in answer["items"]]


def typed(harness: Any, code: str) -> dict[str, str]:
    answer = harness.ask("complete", code=code, pos=len(code), max=100)
    return {item["text"]: item["type"] for item in answer["items"]}


def look_up(harness: Any, symbol: str, module: str | None = None) -> dict[str, Any]:
    answer = harness.ask("lookup", symbol=symbol, module=module)
    assert answer.pop("t") == "found"
    assert isinstance(answer, dict)
    return answer


def test_names_are_completed_and_told_in_every_python(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python)
    assert harness.eval(TRAPS)["outcome"] == "ok"
    assert typed(harness, "pri") == {"print": "function"}
    assert typed(harness, "trap.m") == {"method": "method", "made": "method"}
    assert typed(harness, "trap.inst.upp") == {"upper": "method"}
    assert texts(harness, "held['pre") == ["pre_one", "pre_two"]
    assert "path" in texts(harness, "import os.pa")
    assert texts(harness, "plain(1, ga") == ["gamma="]
    assert texts(harness, "sorted([], k") == ["key="]
    assert look_up(harness, "plain")["signature"] == "(alpha, beta, /, gamma, *, delta=None)"
    result = look_up(harness, "trap.method")
    assert result["signature"] == "(alpha, /, beta: int = 2, *rest, gamma=..., **more)"
    assert (result["doc"], result["file"], result["line"]) == ("Does it.", "<work:1>", 13)
    assert look_up(harness, "join", "os.path")["found"]
    assert harness.value("ran") == "[]"


@pytest.mark.parametrize(
    ("code", "items"),
    [
        ("trap.sh", {"shared": "instance"}),
        ("trap.pr", {"prop": "property"}),
        ("trap.ins", {"inst": "instance"}),
        ("trap.prop.", {}),
        ("trap.nothing.", {}),
        ("Trap.lo", {"loose": "method"}),
        ("slotted.first.app", {"append": "method"}),
        ("slotted.sec", {"second": "property"}),
        ("slotted.second.", {}),
        ("pair.le", {"left": "property"}),
        ("osp.joi", {"join": "function"}),
        ("os.path.joi", {"join": "function"}),
        ("collections.OrderedDi", {"OrderedDict": "class"}),
        ("held[", {"'pre_one'": "key", "'pre_two'": "key", '"it\'s"': "key", "3": "key"}),
        ('held["it', {"it's": "key"}),
        ("held['it", {}),
        ("held[r'pre_o", {"pre_one": "key"}),
        ("x[0]['pre", {}),
        ("trap.method(gam", {"gamma=": "param"}),
        ("trap.method(al", {"all": "function"}),
        ("Trap.made(si", {"size=": "param"}),
        ("Trap.made(cl", {"class": "keyword", "classmethod": "class"}),
        ("Trap.method(be", {"beta=": "param"}),
        ("trap.loose(wid", {"width=": "param"}),
        ("wrapper(1, 2, gam", {"gamma=": "param"}),
        ("def plain(gam", {}),
        ("plain(1, delta=gam", {}),
        ("print(plain(1), fl", {"float": "class", "flush=": "param"}),
        ("'text'.capi", {"capitalize": "method"}),
        ("[1, 2].ins", {"insert": "method"}),
        ("held[0].ins", {}),
        ("print(1).ins", {}),
        ("1.", {}),
        ("# trap.sh", {}),
        ("'''trap.sh", {}),
        ("x = 'done'; trap.sh", {"shared": "instance"}),
        ("wh", {"while": "keyword"}),
        ("amount = 1\nprint(amo", {"amount": "statement"}),
        ("from collections im", {"import": "keyword"}),
        ("from collections import OrderedDi", {"OrderedDict": "class"}),
        ("from collections import (deque, OrderedDi", {"OrderedDict": "class"}),
        ("import os, tokeniz", {"tokenize": "module"}),
        ("from tokeniz", {"tokenize": "module"}),
        ("import xml.do", {"dom": "module"}),
        ("from xml import do", {"dom": "module"}),
        ("import os.path as osp; osp.joi", {"join": "function"}),
        ("trap\u00e9.sh", {}),
    ],
)
def test_what_can_follow_is_found_without_running_anything(harness: Any, code: str, items: dict[str, str]) -> None:
    harness.eval(TRAPS)
    assert typed(harness, code) == items
    assert harness.value("ran") == "[]"


def test_completing_an_import_imports_nothing(harness: Any, tmp_path: Path) -> None:
    (tmp_path / "sly.py").write_text("raise SystemExit")
    (tmp_path / "sly_package").mkdir()
    (tmp_path / "sly_package" / "inner.py").write_text("raise SystemExit")
    harness.send(op="assign", n=90, cwd=str(tmp_path))
    harness.frame()
    assert texts(harness, "import sl") == ["sly", "sly_package"]
    assert texts(harness, "from sly_package import inn") == ["inner"]
    assert harness.value("import sys; [name for name in sys.modules if 'sly' in name]") == "[]"


def test_paths_in_a_string_are_completed(harness: Any, tmp_path: Path) -> None:
    (tmp_path / "some directory").mkdir()
    (tmp_path / "some file.txt").write_text("")
    code = f"open('{tmp_path}/some"
    answer = harness.ask("complete", code=code, pos=len(code), max=10)
    assert answer["items"] == [{"text": "some directory/", "type": "path"}, {"text": "some file.txt", "type": "path"}]
    assert answer["start"] == len(code) - len("some")


def test_public_names_come_first_and_the_word_is_told(harness: Any) -> None:
    harness.eval("class A:\n    _b = 1\n    c = 1\n    __d = 1\na = A()")
    assert texts(harness, "a.")[:3] == ["c", "_A__d", "_b"]
    answer = harness.ask("complete", code="x = a.c + 1", pos=7, max=1)
    assert (answer["start"], answer["items"]) == (6, [{"text": "c", "type": "instance"}])


@pytest.mark.parametrize("pos", [-1, 4, 10**9])
def test_a_position_outside_of_the_text_has_nothing(harness: Any, pos: int) -> None:
    assert texts(harness, "pri", pos) == []


def test_huge_objects_are_looked_at_in_part(harness: Any) -> None:
    harness.eval(
        "class A: pass\nmany = A(); many.__dict__.update(('a%d' % i, i) for i in range(1_000_000))\n"
        "keys = dict.fromkeys(map(str, range(1_000_000)))"
    )
    started = time.monotonic()
    assert len(texts(harness, "many.a", most=5)) == 5
    assert len(texts(harness, "keys['", most=10**9)) == 1000
    assert texts(harness, "(" * 200_000 + "pri") == ["print"]
    assert texts(harness, "x" * 1_000_000) == []
    assert time.monotonic() - started < 5
    assert texts(harness, "keys['", most=0) == []


def test_columns_of_a_frame_are_completed(harness: Any) -> None:
    code = (
        "import sys, types\nmodule = types.ModuleType('pandas')\nclass DataFrame: columns = ['weight', 'size of it', 3]\n"
        "module.DataFrame = DataFrame; sys.modules['pandas'] = module\nframe = DataFrame()\n"
        "class Sub(DataFrame): columns = property(lambda self: 1 / 0)\nsub = Sub()"
    )
    harness.eval(code)
    assert typed(harness, "frame['") == {"weight": "key", "size of it": "key"}
    assert typed(harness, "frame.we") == {"weight": "property"}
    assert "key" not in typed(harness, "sub['w").values()


@pytest.mark.parametrize(
    "symbol", ["1 + 1", "print()", "os.system('false')", "", ".", "a..b", "a.", "trap.nothing", "for", "x" * 5000]
)
def test_what_is_no_name_is_not_found_and_not_run(harness: Any, symbol: str) -> None:
    harness.eval(TRAPS)
    assert look_up(harness, symbol) == {"n": 2, "found": False}
    assert look_up(harness, "print", symbol)["found"] is False
    assert harness.value("ran") == "[]"


def test_a_class_is_told_with_its_methods(harness: Any) -> None:
    harness.eval(TRAPS)
    result = look_up(harness, "Trap")
    assert (result["type"], result["doc"], result["file"]) == ("Meta", "What a trap is.", "<work:1>")
    assert result["methods"] == [
        "loose(width)",
        "made(size)",
        "method(alpha, /, beta: int = 2, *rest, gamma=..., **more)",
    ]
    assert look_up(harness, "trap")["methods"] == result["methods"]
    assert look_up(harness, "trap.prop")["type"] == "property"
    assert look_up(harness, "dict")["methods"][0].startswith("clear(")
    assert harness.value("ran") == "[]"


def test_a_builtin_and_a_module_are_told(harness: Any) -> None:
    harness.eval("import os")
    result = look_up(harness, "print")
    assert result["doc"].startswith("Prints")
    assert result["methods"] == ["print" + result["signature"]]
    result = look_up(harness, "os")
    assert (result["type"], result["line"]) == ("module", 1)
    assert result["file"].endswith("/os.py")
    assert look_up(harness, "os.path.join")["file"].endswith("posixpath.py")


def test_a_cached_function_is_told_as_what_it_wraps(harness: Any) -> None:
    harness.eval("import functools\n@functools.lru_cache(None)\ndef slow(width, height=2):\n    'Slowly.'")
    result = look_up(harness, "slow")
    assert (result["signature"], result["doc"], result["line"]) == ("(width, height=2)", "Slowly.", 2)
    assert result["methods"] == ["slow(width, height=2)"]
    assert texts(harness, "slow(hei") == ["height="]


def test_a_long_doc_is_cut_and_its_margin_is_gone(harness: Any) -> None:
    harness.eval(
        "def f():\n    '''Head.\n\n        deeper\n    margin\n    '''\ndef g(): pass\ng.__doc__ = 'x' * 10_000"
    )
    assert look_up(harness, "f")["doc"] == "Head.\n\n    deeper\nmargin"
    assert len(look_up(harness, "g")["doc"]) == 4096


@pytest.mark.parametrize(
    "sabotage",
    [
        "import sys; sys.modules.clear()",
        "import sys; sys.path[:] = [1, None]; sys.meta_path.clear()",
        "import builtins; builtins.__dict__.clear()",
        "import sys; sys.setrecursionlimit(60)",
        "import os, sys; os.path = os.scandir = sys.path = None",
    ],
)
def test_a_session_that_breaks_its_python_still_answers_questions(harness: Any, sabotage: str) -> None:
    harness.eval(sabotage)
    texts(harness, "pri")
    texts(harness, "import o")
    look_up(harness, "print")
    answer = harness.ask("dump", max=1000, dill=None)
    assert answer["error"]
    assert harness.value("1") == "1"


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "complete", "n": 1, "code": 1, "pos": 1, "max": 1},
        {"op": "complete", "n": 1, "code": "a", "pos": 1.0, "max": 1},
        {"op": "lookup", "n": 1, "symbol": None},
        {"op": "lookup", "n": 1, "symbol": "a", "module": 3},
        {"op": "dump", "n": 1, "max": "1"},
        {"op": "restore", "n": 1, "dill": 1},
    ],
)
def test_a_question_of_the_wrong_shape_breaks_the_contract(harness: Any, frame: dict[str, Any]) -> None:
    harness.send(**frame)
    assert harness.exit_code() == 70
