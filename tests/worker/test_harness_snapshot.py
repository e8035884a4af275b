"""The python harness: names that go from one session to another, and what cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dill
import pytest

DILL = str(Path(dill.__file__).parents[1])
MIB = 1 << 20

SESSION = """
import abc, collections, dataclasses, enum, functools, logging, os.path as osp, sys, threading, typing
class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    def shout(self): return self.name + '!'
class Planet(enum.Enum):
    EARTH = (1, 2)
    def __init__(self, mass, size): self.mass = mass
class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2
@dataclasses.dataclass
class Point:
    x: int = 3
    rest: list = dataclasses.field(default_factory=list)
Pair = collections.namedtuple('Pair', 'a b')
class Named(typing.NamedTuple):
    a: int
    def twice(self): return self.a * 2
class Base:
    made = []
    def who(self): return 'base'
class Child(Base):
    def who(self): return 'child of ' + super().who()
    @classmethod
    def build(cls): return cls()
    @functools.cached_property
    def cached(self): return [self.who()]
class Slots:
    __slots__ = ('a', 'b')
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
T = typing.TypeVar('T'); imported = typing.AnyStr
class Box(typing.Generic[T]): pass
class Meta(type):
    def hello(cls): return 'hello'
class WithMeta(metaclass=Meta): pass
class Single:
    only = None
Single.only = Single(); Base.made.append(Child)
child = Child.build(); child.cached; slots = Slots(); slots.a = 1
point = Point(5, [1]); pair = Pair(1, 2); named = Named(4); colour = Colour.RED; rights = Rights.READ | Rights.WRITE
x = 10
def get(): return x
def put(value):
    global x
    x = value
shared = [1]; one = {'it': shared}; two = (shared,)
loop = []; loop.append(loop)
plus = lambda y: x + y
def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
step = counter(); step()
def recursive():
    def inner(n): return 1 if n == 0 else n * inner(n - 1)
    return inner
factorial = recursive()
def louder(f):
    @functools.wraps(f)
    def wrapped(*args): return f(*args) + 1
    return wrapped
@louder
def decorated(n): return n
@functools.wraps(osp.join)
def looks_imported(): return x
memo = functools.lru_cache(None)(get)
part = functools.partial(decorated, 1)
bound = child.who
me = sys.modules['__main__']; everything = globals()
handler = logging.StreamHandler(); log = logging.getLogger('mine'); event = threading.Event()
try:
    raise KeyError('kept')
except KeyError as exc:
    error = exc
_hidden = 7
text = 'x' * 100
"""

CHECKS = [
    ("get(), put(3), get(), x, plus(1)", "(10, None, 3, 3, 4)"),
    ("get.__globals__ is globals(), looks_imported(), memo()", "(True, 3, 3)"),
    ("one['it'] is two[0] is shared, loop[0] is loop", "(True, True)"),
    (
        "isinstance(child, Child), child.who(), Child().cached, bound()",
        "(True, 'child of base', ['child of base'], 'child of base')",
    ),
    ("Base.made == [Child], Single.only.__class__ is Single, isinstance(Single.only, Single)", "(True, True, True)"),
    ("imported is typing.AnyStr, T is typing.AnyStr, T.__name__", "(True, False, 'T')"),
    ("colour is Colour.RED, Colour(2), Colour.RED.shout()", "(True, <Colour.GREEN: 2>, 'RED!')"),
    ("Planet.EARTH.mass, Planet((1, 2)) is Planet.EARTH, rights == 3, type(rights) is Rights", "(1, True, True, True)"),
    (
        "point == Point(5, [1]), dataclasses.asdict(point), Point()",
        "(True, {'x': 5, 'rest': [1]}, Point(x=3, rest=[]))",
    ),
    ("type(pair) is Pair, pair, type(named) is Named, named.twice()", "(True, Pair(a=1, b=2), True, 8)"),
    (
        "slots.a, hasattr(slots, 'b'), hasattr(slots, '__dict__'), WithMeta.hello(), Box[int]",
        "(1, False, False, 'hello', __main__.Box[int])",
    ),
    ("Shape.__abstractmethods__", "frozenset({'area'})"),
    ("step(), step(), factorial(5), decorated(1), part()", "(2, 3, 120, 2, 2)"),
    ("me is sys.modules['__main__'], everything is globals(), osp.sep, _hidden", "(True, True, '/', 7)"),
    ("handler.stream is sys.stderr, log is logging.getLogger('mine'), event.is_set()", "(True, True, False)"),
    ("repr(error), len(text)", "(\"KeyError('kept')\", 100)"),
]


@pytest.fixture
def file() -> Any:
    fd = os.memfd_create("snapshot")
    yield fd
    os.close(fd)


def dump(harness: Any, fd: int, most: int = 64 * MIB) -> dict[str, Any]:
    answer = harness.ask("dump", fd=fd, max=most, dill=DILL)
    assert answer["t"] == "dumped"
    assert isinstance(answer, dict)
    return answer


def restore(harness: Any, fd: int, **span: int) -> dict[str, Any]:
    answer = harness.ask("restore", fd=fd, data=None, dill=DILL, **span)
    assert answer["t"] == "dumped"
    assert isinstance(answer, dict)
    return answer


def why(answer: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["why"] for row in answer["skipped"]}


def test_a_session_goes_over_whole_in_every_python(
    start_harness: Callable[..., Any], any_python: str, file: int
) -> None:
    source, clone = start_harness(any_python), start_harness(any_python)
    assert source.eval(SESSION)["outcome"] == "ok"
    dumped = dump(source, file)
    assert (dumped["error"], dumped["skipped"]) == (None, [])
    assert dumped["bytes"] == os.fstat(file).st_size
    restored = restore(clone, file)
    assert (restored["error"], restored["skipped"]) == (None, [])
    assert restored["count"] == dumped["count"] > 50
    assert [(code, clone.value(code, history=False)) for code, _ in CHECKS] == CHECKS
    assert clone.eval("Shape()")["ex"]["type"] == "TypeError"
    assert source.value("x, step()") == "(10, 2)"  # the clone's changes are its own


def test_a_lent_dill_is_gone_afterwards(start_harness: Callable[..., Any], file: int) -> None:
    harness = start_harness()
    harness.eval("import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; a = [1]; f = lambda: a")
    for _ in range(2):
        assert dump(harness, file)["error"] is None
        assert (
            harness.value("[n for n in sys.modules if n.split('.')[0] == 'dill'], 'dill' in sys.path") == "([], False)"
        )
        assert restore(harness, file)["error"] is None
        assert harness.value("f() is a, [n for n in sys.modules if n.split('.')[0] == 'dill']") == "(True, [])"


def test_what_belongs_to_its_process_stays_with_a_reason(start_harness: Callable[..., Any], file: int) -> None:
    source, clone = start_harness(), start_harness()
    source.eval(
        "import socket, threading\nkept = 1\ndeep = []\n"
        "gen = (i for i in 'ab'); lock = threading.Lock(); thread = threading.Thread(); opened = open('/dev/null')\n"
        "sock = socket.socket()\nbusy = threading.Lock(); busy.acquire(); inside = [kept, {'a': busy}]\n"
        "for _ in range(50_000): deep = [deep]\n"
        "class Bad:\n    def __reduce__(self): raise ValueError('not me')\n"
        "bad = Bad(); after = [kept, Bad]"
    )
    answer = dump(source, file)
    reasons = why(answer)
    assert set(reasons) == {"gen", "lock", "thread", "opened", "sock", "busy", "inside", "deep", "bad"}
    assert reasons["gen"] == "generator: a generator belongs to its process"
    assert reasons["opened"] == "TextIOWrapper: an open file belongs to its process"
    assert reasons["inside"] == "list: a locked lock"
    assert reasons["bad"] == "Bad: ValueError: not me"
    assert reasons["deep"].startswith("list: RecursionError")
    assert restore(clone, file)["skipped"] == []
    assert clone.value("kept, after, isinstance(after[1](), Bad)") == "(1, [1, <class '__main__.Bad'>], True)"
    assert source.value("next(gen), deep is not None") == "('a', True)"


def test_many_left_behind_are_counted(harness: Any, file: int) -> None:
    harness.eval("globals().update(('g%03d' % i, (j for j in ())) for i in range(150))")
    rows = dump(harness, file)["skipped"]
    assert len(rows) == 101
    assert rows[-1] == {"name": "…", "why": "and 50 more"}


def test_a_module_that_is_missing_leaves_the_rest(start_harness: Callable[..., Any], file: int, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("class Tool:\n    size = 3\n")
    source, clone, same = start_harness(), start_harness(), start_harness()
    for each in (source, same):
        each.send(op="assign", n=70, cwd=str(tmp_path))
        each.frame()
    source.eval(
        "import helper, json\nfrom helper import Tool\nfirst = [1]\ntool = {'tool': Tool(), 'first': first}\n"
        "second = [first, 2]\nlost = [tool]\ndef size(): return helper.Tool.size"
    )
    assert why(dump(source, file)) == {}
    restored = restore(clone, file)
    missing = "ModuleNotFoundError: No module named 'helper'"
    assert why(restored) == {
        "helper": "module: " + missing,
        "Tool": missing,
        "tool": missing,
        "lost": "_LostReference: it shares something with a name that could not be restored",
    }
    assert clone.value("second, second[0] is first, json.dumps(1), size.__name__") == "([[1], 2], True, '1', 'size')"
    assert why(restore(same, file)) == {}
    assert same.value("lost[0] is tool, isinstance(tool['tool'], Tool), size()") == "(True, True, 3)"


def test_code_of_another_python_stays_behind_and_data_comes_along(start_harness: Callable[..., Any], file: int) -> None:
    source, clone = start_harness(), start_harness()
    source.eval("data = {'a': [1]}; same = data['a']\ndef f(): return 1\nclass C:\n    size = 3\nmade = [C()]")
    assert dump(source, file)["error"] is None
    head = os.pread(file, 100, 0).partition(b"\n")[0]
    other = head[:-1] + (b"0" if head[-1:] != b"0" else b"1")
    os.pwrite(file, other, 0)
    restored = restore(clone, file)
    theirs = other.partition(b", ")[2].decode()
    assert (restored["error"], why(restored)["f"]) == (None, f"code compiled by {theirs}")
    assert clone.value("same.append(2), data") == "(None, {'a': [1, 2]})"
    os.pwrite(file, other.replace(b"cpython", b"jpython"), 0)
    assert restore(clone, file)["error"].startswith("written by jpython")


def test_a_snapshot_is_read_from_the_middle_of_a_file(start_harness: Callable[..., Any], file: int) -> None:
    source, clone = start_harness(), start_harness()
    source.eval("x = [1]; y = x; b = bytearray(1000)")
    size = dump(source, file)["bytes"]
    content = os.pread(file, size, 0)
    os.pwrite(file, b"head" + content + b"tail", 0)
    assert restore(clone, file, offset=4, size=size)["error"] is None
    assert clone.value("x is y, len(b)") == "(True, 1000)"
    assert restore(clone, file, offset=4)["error"] == "an incomplete snapshot"
    assert restore(clone, file, offset=5, size=size)["error"] == "not a snapshot"


def test_a_snapshot_keeps_to_its_bound(harness: Any, file: int) -> None:
    harness.eval("big = b'x' * 3_000_000; small = 1")
    assert dump(harness, file, 2 * MIB)["error"] == f"snapshot over {2 * MIB} bytes"
    assert os.fstat(file).st_size == 0
    assert dump(harness, file, 4 * MIB)["error"] is None
    assert harness.value("len(big)") == "3000000"


def test_buffers_are_written_beside_the_pickle(start_harness: Callable[..., Any], file: int) -> None:
    source, clone = start_harness(), start_harness()
    source.eval(
        "import pickle\nclass Array:\n    def __init__(self, data): self.data = data\n"
        "    def __reduce_ex__(self, protocol): return (Array, (pickle.PickleBuffer(self.data),))\n"
        "a = Array(bytearray(b'abc' * 1000)); b = a; c = [Array(bytearray(5)), a]\n"
        "class Fails:\n    def __reduce__(self): raise ValueError\nbad = [Array(bytearray(100)), Fails()]; d = Array(bytearray(b'end'))"
    )
    assert set(why(dump(source, file))) == {"bad"}
    assert restore(clone, file)["error"] is None
    code = "a is b is c[1], bytes(a.data) == b'abc' * 1000, bytes(c[0].data), bytes(d.data), type(a.data).__name__"
    assert clone.value(code) == "(True, True, b'\\x00\\x00\\x00\\x00\\x00', b'end', 'bytearray')"


def test_an_endless_copy_can_be_interrupted(harness: Any, file: int) -> None:
    harness.eval(
        "class Endless:\n    def __reduce__(self):\n        print('in', flush=True)\n        while True: pass\nendless = Endless()"
    )
    harness.send_descriptor(file, harness.number + 1)
    harness.number += 1
    harness.send(op="dump", n=harness.number, max=MIB, dill=DILL)
    harness.until(lambda: b"in" in harness.stdout)
    harness.interrupt()
    assert harness.frame()["error"] == "interrupted"
    harness.eval("del endless")
    assert dump(harness, file)["error"] is None


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "not a snapshot"),
        (b"\x80\x05K\x01.", "not a snapshot"),
        (b"replctl snapshot 1, cpython 2.7\n" + b"x" * 99, "written by cpython 2.7, but this is "),
    ],
)
def test_what_is_no_snapshot_of_this_python_is_refused(harness: Any, file: int, content: bytes, error: str) -> None:
    os.write(file, content)
    answer = restore(harness, file)
    assert answer["error"].startswith(error)
    assert answer["count"] == 0
    assert harness.value("1") == "1"


def test_a_snapshot_that_was_cut_or_damaged_is_refused_or_told(harness: Any, file: int) -> None:
    harness.eval("import os.path as osp\na = [1, 2]\nb = {'c': a}\ndef f(): return a")
    dump(harness, file)
    whole = os.pread(file, MIB, 0)
    for at in range(0, len(whole), 37):
        os.pwrite(file, whole, 0)
        os.ftruncate(file, at)
        assert restore(harness, file)["error"] is not None
        os.pwrite(file, whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :], 0)
        assert restore(harness, file)["t"] == "dumped"
    assert harness.value("1") == "1"


def test_without_a_descriptor_or_a_file_it_is_an_error(harness: Any) -> None:
    assert harness.ask("dump", max=MIB, dill=DILL)["error"] == "no descriptor received"
    reader, writer = os.pipe()
    assert harness.ask("dump", fd=writer, max=MIB, dill=DILL)["error"] == "the descriptor is not a file"
    os.close(reader)
    os.close(writer)


def test_descriptors_are_closed_when_they_were_used_or_not_wanted(harness: Any, file: int) -> None:
    before = harness.value("import os; len(os.listdir('/proc/self/fd'))")
    for _ in range(3):
        harness.send_descriptor(file, 0)
    dump(harness, file)
    restore(harness, file)
    assert harness.value("len(os.listdir('/proc/self/fd'))") == before


def test_without_dill_it_says_so(start_harness: Callable[..., Any], any_python: str, file: int, tmp_path: Path) -> None:
    harness = start_harness(any_python)
    harness.eval("import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]")
    assert harness.ask("dump", fd=file, max=MIB, dill=str(tmp_path))["error"].startswith("dill is not installed in ")
    (tmp_path / "dill.py").write_text("raise SystemExit")
    harness.send(op="assign", n=71, cwd=str(tmp_path))
    harness.frame()
    assert dump(harness, file)["error"] is None
