"""The python harness: rich forms of values that bring their own, the hostile ones too; what no library is needed for."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = "application/vnd.replctl.file"
EVERY = (
    "application/x+json",
    "image/*",
    "text/html",
    "text/markdown",
    "text/latex",
    "application/json",
    "image/gif",
)


def _assign(harness: Any, directory: Path, **limits: int) -> None:
    wanted = {name.replace("_", "-"): value for name, value in limits.items()}
    harness.send(op="assign", n=0, cwd=None, env={"TMPDIR": str(directory)}, limits=wanted)
    assert harness.frame()["error"] is None


def _with(method: str, body: str) -> str:
    return f"class A:\n    def {method}(self, **more):\n        {body}\n    def __repr__(self): return 'plain'\nA()"


@pytest.mark.parametrize(
    ("method", "body", "mime", "data"),
    [
        ("_repr_html_", "return '<b>é</b>'", "text/html", "<b>é</b>"),
        ("_repr_markdown_", "return '*x*', {'about': 'it'}", "text/markdown", "*x*"),
        ("_repr_latex_", "return '$x$'", "text/latex", "$x$"),
        ("_repr_png_", "return b'png'", "image/png", base64.b64encode(b"png").decode()),
        ("_repr_jpeg_", "return bytearray(b'jpeg'), {}", "image/jpeg", base64.b64encode(b"jpeg").decode()),
        ("_repr_svg_", "return '<svg/>'", "image/svg+xml", "<svg/>"),
        ("_repr_svg_", "return b'<svg/>'", "image/svg+xml", "<svg/>"),
        (
            "_repr_json_",
            "return {'a': (1, 2.5, None, True, 'é')}",
            "application/json",
            '{"a":[1,2.5,null,true,"\\u00e9"]}',
        ),
        ("_repr_mimebundle_", "return {'application/x+json': [float('nan')]}", "application/x+json", "[null]"),
        ("_repr_mimebundle_", "return {'image/gif': b'gif'}, {}", "image/gif", base64.b64encode(b"gif").decode()),
        ("_repr_mimebundle_", "return {'image/webp': 'd2VicA=='}", "image/webp", "d2VicA=="),
        ("_repr_mimebundle_", "return {'text/plain': 'no', 'text/html': '\\ud800'}", "text/html", "\\ud800"),
    ],
)
def test_a_value_comes_in_the_form_it_brings(harness: Any, method: str, body: str, mime: str, data: str) -> None:
    answer = harness.eval(_with(method, body), mime=EVERY)
    assert (answer["outcome"], answer["value"]) == ("ok", "plain")
    assert answer["mime"] == {mime: data}
    assert "images" not in answer
    assert harness.hang_up() == 0
    assert bytes(harness.stderr) == b""


def test_the_first_form_that_the_caller_names_is_the_one_that_comes(harness: Any) -> None:
    harness.eval(
        "class A:\n"
        "    def _repr_html_(self): return 'html'\n"
        "    def _repr_markdown_(self): return 'markdown'\n"
        "    def _repr_latex_(self): raise SystemExit\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'bundled'}\n"
        "a = A()"
    )
    assert harness.eval("a", mime=["text/markdown", "text/html"])["mime"] == {"text/markdown": "markdown"}
    assert harness.eval("a", mime=["image/png", "text/html"])["mime"] == {"text/html": "bundled"}
    assert "mime" not in harness.eval("a", mime=["image/*", "text/plain"])
    assert "mime" not in harness.eval("a")
    assert "mime" not in harness.eval("a", mime=["text/html"], silent=True)
    assert harness.hang_up() == 0
    assert bytes(harness.stderr) == b""


@pytest.mark.parametrize(
    ("method", "body", "says"),
    [
        ("_repr_html_", "raise ValueError('one\\ntwo')", "text/html of a A could not be made: ValueError: one two"),
        ("_repr_html_", "raise SystemExit(3)", "text/html of a A could not be made: SystemExit: 3"),
        ("_repr_html_", "return 5", "text/html of a A could not be made: TypeError: neither text nor bytes but int"),
        # Not through the method itself: CPython 3.13.0 finds no end in a function with `**` that calls itself.
        ("_repr_html_", "f = lambda: f()\n        return f()", "text/html of a A could not be made: RecursionError"),
        ("_repr_html_", "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", "could not be made: E:"),
        ("_repr_png_", "return 'not base64!'", "image/png of a A could not be made: Error"),
        ("_repr_json_", "return object()", "application/json of a A could not be made: TypeError: object is not JSON"),
        ("_repr_json_", "x = []; x.append(x); return x", "ValueError: it holds itself"),
        ("_repr_json_", "return {1: 2}", "TypeError: a name that is not text"),
        ("_repr_json_", "x = []\n        for _ in range(99999): x = [x]\n        return x", "RecursionError"),
        ("_repr_mimebundle_", "return 5", "_repr_mimebundle_ of a A could not be made: TypeError"),
        ("_repr_mimebundle_", "raise MemoryError", "_repr_mimebundle_ of a A could not be made: MemoryError"),
        ("_repr_html_", "raise NotImplementedError", None),
        ("_repr_html_", "return None", None),
        ("_repr_html_", "return ''", None),
    ],
)
def test_a_form_that_fails_leaves_the_text_and_a_line(harness: Any, method: str, body: str, says: str | None) -> None:
    answer = harness.eval(_with(method, body), mime=EVERY)
    assert (answer["outcome"], answer["value"]) == ("ok", "plain")
    assert "mime" not in answer
    assert harness.value("1 + 1", mime=EVERY) == "2"
    assert harness.hang_up() == 0
    lines = bytes(harness.stderr).decode().splitlines()
    assert len(lines) == (says is not None)
    assert (says or "") in "".join(lines)


def test_a_hostile_object_gets_its_text_in_every_python(
    start_harness: Callable[..., Any], any_python: str, tmp_path: Path
) -> None:
    harness = start_harness(any_python)
    _assign(harness, tmp_path)
    harness.eval(
        "import sys\n"
        "class D(dict):\n"
        "    def __getattribute__(self, name): raise SystemExit\n"
        "    def __iter__(self): raise SystemExit\n"
        "    def __len__(self): raise SystemExit\n"
        "class S(str):\n"
        "    def __getattribute__(self, name): raise SystemExit\n"
        "    def __len__(self): raise SystemExit\n"
        "    def encode(self, *a): raise SystemExit\n"
        "class Meta(type):\n"
        "    @property\n"
        "    def __mro__(cls): raise SystemExit\n"
        "    __name__ = __dict__ = property(lambda cls: 1 / 0)\n"
        "    def mro(cls): return type.mro(cls)\n"
        "class Shy(metaclass=Meta):\n"
        "    def __getattribute__(self, name): raise SystemExit\n"
        "    def __repr__(self): return 'shy'\n"
        "    def _repr_html_(self): return 'never'\n"
        "class Eager:\n"
        "    def __getattr__(self, name): return lambda *a, **k: 'everything'\n"
        "    def __repr__(self): return 'eager'\n"
        "class Open:\n"
        "    def _repr_mimebundle_(self, **k): return D({'text/html': S('<b>'), 'application/json': D(a=S('x'))})\n"
        "    def __repr__(self): return 'open'\n"
        "class Endless:\n"
        "    def _repr_html_(self):\n"
        "        print('drawing')\n"
        "        while True: pass\n"
    )
    shy = harness.eval("Shy()", mime=EVERY)
    assert (shy["outcome"], shy["value"], shy.get("mime")) == ("ok", "shy", None)
    eager = harness.eval("Eager()", mime=EVERY)
    assert (eager["value"], eager.get("mime")) == ("eager", None)
    assert harness.eval("Open()", mime=["text/html"])["mime"] == {"text/html": "<b>"}
    assert harness.eval("Open()", mime=["application/json"])["mime"] == {"application/json": '{"a":"x"}'}
    harness.start_eval("Endless()", mime=EVERY)
    harness.until(lambda: b"drawing" in harness.stdout)
    harness.interrupt()
    answer = harness.result()
    assert (answer["outcome"], answer["value"], answer.get("mime")) == ("interrupted", None, None)
    harness.eval("class Big:\n    def _repr_html_(self): return '\\x01é' * 1_000_000")
    big = harness.eval("Big()", mime=EVERY)["mime"]
    assert Path(big[FILE]).read_text() == "\x01é" * 1_000_000
    assert sorted(big) == [FILE, "text/plain"]
    fakes = "for name in ('PIL.Image', 'matplotlib.pyplot', 'matplotlib.figure', 'pandas', 'polars'): "
    harness.eval(fakes + "sys.modules[name] = Eager()")
    assert harness.value("Eager()", mime=EVERY) == "eager"
    harness.eval(fakes + "sys.modules[name] = type(sys)(name)")
    assert harness.value("Eager()", mime=EVERY) == "eager"
    harness.eval("sys.meta_path[:] = []; sys.modules.clear()")
    assert harness.value("Eager()", mime=EVERY) == "eager"
    assert harness.hang_up() == 0
    assert bytes(harness.stderr).decode().splitlines() == ["text/html of a Shy could not be made: SystemExit:"]


def test_a_first_look_after_the_import_system_is_gone_is_text_alone(harness: Any) -> None:
    harness.eval(
        "class A:\n    def _repr_html_(self): return 'x'\nimport sys; sys.meta_path.clear(); sys.modules.clear()"
    )
    answer = harness.eval("A()", mime=EVERY)
    assert (answer["outcome"], answer.get("mime")) == ("ok", None)


def test_what_is_over_the_bound_goes_into_a_file_of_this_user_alone(harness: Any, tmp_path: Path) -> None:
    _assign(harness, tmp_path, image_bytes=100)
    harness.eval("class A:\n    def _repr_html_(self): return 'h' * n\n    def _repr_png_(self): return b'p' * n\n")
    assert harness.eval("n = 100; A()", mime=["text/html"])["mime"] == {"text/html": "h" * 100}
    assert harness.eval("n = 75; A()", mime=["image/png"])["mime"]["image/png"] == base64.b64encode(b"p" * 75).decode()
    assert not (tmp_path / "replctl-images").exists()
    for kind, suffix, letter in (("text/html", ".html", "h"), ("image/png", ".png", "p")):
        bundle = harness.eval("n = 101; A()", mime=[kind])["mime"]
        path = Path(bundle[FILE])
        assert bundle == {FILE: str(path), "text/plain": f"{kind} of 101 bytes in {path}"}
        assert (path.parent, path.suffix) == (tmp_path / "replctl-images", suffix)
        assert path.read_text() == letter * 101
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    bundle = harness.eval("n = 26_000_000; A()", mime=["text/html"])["mime"]
    assert bundle == {"text/plain": "text/html of 26000000 bytes not kept"}


def test_a_frame_is_never_longer_than_the_channel_takes(harness: Any, tmp_path: Path) -> None:
    _assign(harness, tmp_path, image_bytes=1 << 30, value_bytes=1 << 20, images=1 << 30)
    harness.eval(
        "class A:\n    def _repr_html_(self): return '\\x01' * 1_300_000\n    def __repr__(self): return '\\x01' * 2_000_000"
    )
    answer = harness.eval("A()", mime=["text/html"])
    assert list(answer["mime"]) == [FILE, "text/plain"]
    assert len(json.dumps(answer)) < 8 << 20


def test_the_directory_keeps_fifty_files_and_the_oldest_go_first(harness: Any, tmp_path: Path) -> None:
    _assign(harness, tmp_path, image_bytes=0)
    harness.eval("class A:\n    def _repr_html_(self): return 'x' * n\nn = 1; a = A()")
    paths = [Path(harness.eval("a", mime=["text/html"])["mime"][FILE]) for _ in range(53)]
    assert [path.exists() for path in paths] == [False] * 3 + [True] * 50
    large = [Path(harness.eval("n = 24_000_000; a", mime=["text/html"])["mime"][FILE]) for _ in range(5)]
    assert [path.exists() for path in large] == [False] + [True] * 4
    assert sum(path.stat().st_size for path in (tmp_path / "replctl-images").iterdir()) <= 100_000_000


def test_a_directory_that_others_could_have_laid_out_is_not_written_into(harness: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "replctl-images").symlink_to(elsewhere)
    _assign(harness, tmp_path, image_bytes=0)
    harness.eval("class A:\n    def _repr_html_(self): return 'x'\na = A()")
    path = Path(harness.eval("a", mime=["text/html"])["mime"][FILE])
    assert path.parent == tmp_path / f"replctl-images-{os.geteuid()}"
    path.parent.chmod(0o777)
    bundle = harness.eval("a", mime=["text/html"])["mime"]
    assert bundle == {"text/plain": f"text/html not kept: cannot use a directory in {tmp_path}"}
    assert list(elsewhere.iterdir()) == []
    _assign(harness, tmp_path / "nowhere")
    assert "No such file" in harness.eval("a", mime=["text/html"])["mime"]["text/plain"]


def test_without_mime_nothing_of_it_is_loaded(harness: Any) -> None:
    harness.eval("class A:\n    def _repr_html_(self): print('asked')\nimport sys; a = A()")
    assert harness.value("a; sorted(n for n in sys.modules if n.startswith('replharness.rich'))") == "[]"
    assert "mime" not in harness.eval("a")
    assert harness.value("1", mime=["text/html"]) == "1"
    assert harness.value("sorted(n for n in sys.modules if n.startswith('replharness.rich'))") == "['replharness.rich']"
    assert harness.hang_up() == 0
    assert bytes(harness.stdout) == b""


def test_nothing_of_a_rich_eval_is_kept_alive_after_it(harness: Any) -> None:
    harness.eval(
        "import weakref, gc\nrefs = []\nclass A:\n"
        "    def __init__(self): refs.append(weakref.ref(self))\n"
        "    def _repr_html_(self): return 'x'"
    )
    assert harness.eval("A()", history=False, mime=["text/html"])["mime"]
    assert harness.eval("A(); 1 / 0", history=False, mime=["text/html"])["ex"]
    assert harness.value("gc.collect(); [r() for r in refs]", history=False, mime=["text/html"]) == "[None, None]"
