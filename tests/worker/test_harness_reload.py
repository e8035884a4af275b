"""The python harness: evals that are a file's text, and reloaders that the user has turned on."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

RELOADER = """
import os, sys
class ModuleReloader:
    enabled = False
    def __init__(self): self.checks = 0
    def check(self, check_all=False):
        self.checks += 1
        if self.checks > 2: raise RuntimeError('no more\\nthan two')
"""


def install(directory: Path, *, record: bool = True, place: str = "IPython") -> None:
    """Lay a stand-in for IPython out as an installer would."""
    package = directory / place
    (package / "extensions").mkdir(parents=True)
    for path in (package / "__init__.py", package / "extensions" / "__init__.py"):
        path.write_text("")
    (package / "extensions" / "autoreload.py").write_text(RELOADER)
    info = directory / "ipython-9.9.dist-info"
    info.mkdir()
    listed = "IPython/extensions/autoreload.py,sha256=x,1\n" if record else "IPython/other.py,,\n"
    (info / "RECORD").write_text("IPython/__init__.py,,\n" + listed)


def test_a_file_is_known_by_its_path_while_it_runs(start_harness: Callable[..., Any], any_python: str) -> None:
    harness = start_harness(any_python)
    path = "/some/where/work file.py"
    assert harness.value("def f():\n    1 / 0\n__file__", file=path) == repr(path)
    assert harness.eval("__file__")["ex"]["type"] == "NameError"
    failed = harness.eval("f()")
    assert failed["stacktrace"][1] == {"func": "f", "file": path, "line": 2}
    assert f'File "{path}", line 2, in f\n    1 / 0' in failed["traceback"]
    assert harness.value("import inspect; inspect.getsource(f)") == repr("def f():\n    1 / 0\n")
    assert harness.eval("oops(", file=path)["stacktrace"] == []
    harness.eval("__file__ = 'mine'")
    assert harness.value("__file__", file=path) == repr(path)
    assert harness.value("__file__") == "'mine'"


def test_loading_again_forgets_what_the_file_no_longer_defines(harness: Any) -> None:
    harness.eval("a = 1\nb = 2\n_c = 3\nmine = 4", file="/x.py")
    harness.eval("other = 5", file="/y.py")
    harness.eval("mine = 'my own'")
    assert harness.eval("a = 10", file="/x.py", reload=True)["outcome"] == "ok"
    assert harness.value("sorted(n for n in globals() if not n.startswith('__'))") == "['a', 'mine', 'other']"
    harness.eval("z = 1\n1 / 0", file="/x.py", reload=True)
    assert harness.value("sorted(n for n in globals() if not n.startswith('__'))") == "['mine', 'other', 'z']"
    harness.eval("z2 = 1", file="/x.py")
    assert harness.value("z, z2") == "(1, 1)"
    assert harness.value("9", file="/never/loaded.py", reload=True) == "9"


def test_names_of_a_hundred_files_are_remembered(harness: Any) -> None:
    for number in range(102):
        harness.eval(f"n{number} = [{number}]", file=f"/{number}.py", silent=True)
    harness.eval("", file="/0.py", reload=True)
    harness.eval("", file="/101.py", reload=True)
    assert harness.value("n0") == "[0]"
    assert harness.eval("n101")["ex"]["type"] == "NameError"


def test_a_file_that_is_an_imported_module_is_reloaded(harness: Any, tmp_path: Path) -> None:
    path = tmp_path / "real_module.py"
    path.write_text("size = 1\n")
    harness.send(op="assign", n=80, cwd=str(tmp_path))
    harness.frame()
    harness.eval("import real_module as m\nfrom real_module import size")
    path.write_text("size = 222\n")
    answer = harness.eval("raise SystemExit('not run')", file=str(path), reload=True)
    assert answer["value"] == f"<module 'real_module' from '{path}'>"
    assert (answer["changed"], harness.value("m.size, size")) == ([], "(222, 1)")
    assert harness.value("import linecache; linecache.getlines(m.__file__)") == repr(["size = 222\n"])
    path.write_text("size = \n")
    failed = harness.eval("", file=str(path), reload=True)
    assert failed["ex"]["type"] == "SyntaxError"
    assert harness.value("x = 5\nx", file=str(path)) == "5"  # not again: the text is run


def test_an_endless_reload_can_be_interrupted(harness: Any, tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("go = False\n")
    harness.send(op="assign", n=80, cwd=str(tmp_path))
    harness.frame()
    harness.eval("import endless")
    path.write_text("print('in', flush=True)\nwhile 'going round': pass\n")
    harness.start_eval("", file=str(path), reload=True)
    harness.until(lambda: b"in" in harness.stdout)
    harness.interrupt()
    assert harness.result()["outcome"] == "interrupted"


def test_a_reloader_that_is_on_looks_before_each_named_eval(
    start_harness: Callable[..., Any], any_python: str, tmp_path: Path
) -> None:
    install(tmp_path)
    harness = start_harness(any_python)
    harness.eval(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    harness.eval(
        "from IPython.extensions.autoreload import ModuleReloader\nr = ModuleReloader(); off = ModuleReloader()"
    )
    assert harness.value("r.checks", named=True) == "0"
    harness.eval("r.enabled = True")
    assert harness.value("r.checks", named=False) == "0"
    assert harness.value("r.checks, off.checks", named=True) == "(1, 0)"
    assert harness.value("r.checks", named=True) == "2"
    assert harness.value("r.checks, 'the eval stands'", named=True) == "(3, 'the eval stands')"
    line = b"IPython.extensions.autoreload: RuntimeError: no more than two\n"
    harness.until(lambda: harness.stderr == line)
    assert harness.value("off.checks") == "0"


@pytest.mark.parametrize(
    "forge",
    [
        "import types; module = types.ModuleType(name); exec(source, module.__dict__); sys.modules[name] = module",
        "sys.path.insert(0, unlisted); import IPython.extensions.autoreload as module",
        "sys.path.insert(0, listed); import IPython.extensions.autoreload as module\n"
        "class ModuleReloader(module.ModuleReloader): pass\nmodule = types.SimpleNamespace(ModuleReloader=ModuleReloader)",
        "sys.path.insert(0, listed); import IPython.extensions.autoreload as module\n"
        "def check(self, check_all=False): self.checks += 1\nmodule.ModuleReloader.check = check",
        "sys.path.insert(0, listed); import IPython.extensions.autoreload as module\n"
        "class ModuleReloader:\n    checks = 0\n    def check(self): self.checks += 1\n"
        "module.ModuleReloader = ModuleReloader",
    ],
)
def test_a_look_alike_is_never_run(harness: Any, tmp_path: Path, forge: str) -> None:
    install(tmp_path / "listed")
    install(tmp_path / "unlisted", record=False)
    known = {"listed": str(tmp_path / "listed"), "unlisted": str(tmp_path / "unlisted")}
    harness.eval(f"globals().update({known!r}); source = {RELOADER!r}; name = 'IPython.extensions.autoreload'")
    made = harness.eval("import sys, types\n" + forge + "\nr = module.ModuleReloader(); r.enabled = True")
    assert made["outcome"] == "ok", made["traceback"]
    assert harness.value("r.checks", named=True) == "0"
    assert harness.value("1", named=True) == "1"


def test_an_edit_made_just_before_an_eval_is_seen_in_it(harness: Any, tmp_path: Path) -> None:
    """With the real IPython where it is installed (the extra `bench` brings it), else with a stand-in that reloads."""
    install(tmp_path / "stand_in")
    (tmp_path / "stand_in/IPython/extensions/autoreload.py").write_text(
        "import importlib, os\nclass ModuleReloader:\n    enabled, seen = False, 1e9\n    def check(self):\n"
        "        import edited\n        if os.stat(edited.__file__).st_mtime != self.seen: importlib.reload(edited)\n"
    )
    path = tmp_path / "edited.py"
    path.write_text("def f(): return 1\n")
    os.utime(path, (1e9, 1e9))
    harness.send(op="assign", n=80, cwd=str(tmp_path))
    harness.frame()
    harness.eval(f"import sys; sys.path.append({str(tmp_path / 'stand_in')!r})\nimport edited")
    harness.eval("from IPython.extensions.autoreload import ModuleReloader\nr = ModuleReloader()\nr.enabled = True")
    path.write_text("def f(): return 'edited'\n")
    assert harness.value("edited.f()", named=False) == "1"
    assert harness.value("edited.f()", named=True) == "'edited'"


def test_an_edit_in_the_second_of_the_import_is_not_hidden_by_bytecode(harness: Any, tmp_path: Path) -> None:
    install(tmp_path / "stand_in")
    (tmp_path / "stand_in/IPython/extensions/autoreload.py").write_text(
        "import importlib, sys\n"
        "class ModuleReloader:\n    enabled = False\n    def check(self):\n"
        "        importlib.reload(sys.modules['quick'])\n"
    )
    source = tmp_path / "quick.py"
    source.write_text("def rate(): return 11\n")
    stamp = source.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(source, ns=(stamp, stamp))
    paths = [str(tmp_path / "stand_in"), str(tmp_path)]
    harness.eval(f"import sys; sys.path[:0] = {paths!r}; sys.dont_write_bytecode = False\nimport quick")
    bytecode = Path(cache_from_source(str(source)))
    assert bytecode.exists()
    os.utime(bytecode, ns=(stamp + 10**6, stamp + 10**6))
    source.write_text("def rate(): return 22\n")
    os.utime(source, ns=(stamp + 2 * 10**6, stamp + 2 * 10**6))
    harness.eval("from IPython.extensions.autoreload import ModuleReloader\nr = ModuleReloader()\nr.enabled = True")
    assert harness.value("quick.rate()", named=True) == "22"


def test_a_live_watcher_of_jurigged_is_told_of_edits(harness: Any, tmp_path: Path) -> None:
    (tmp_path / "jurigged").mkdir()
    (tmp_path / "jurigged" / "__init__.py").write_text("")
    (tmp_path / "jurigged" / "live.py").write_text(
        "class Observer:\n    alive = True\n    def is_alive(self): return self.alive\n"
        "class Registry: pass\n"
        "class Watcher:\n    def __init__(self, file):\n"
        "        self.observer = Observer(); self.registry = Registry(); self.refreshed = []\n"
        "        self.registry.precache = {file: ('m', '', 1e9)}; self.registry.cache = {}\n"
        "    def refresh(self, path): self.refreshed.append(path)\n"
    )
    info = tmp_path / "jurigged-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("jurigged/live.py,,\n")
    file = tmp_path / "watched.py"
    file.write_text("")
    os.utime(file, (1e9, 1e9))
    harness.eval(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    harness.eval(f"from jurigged.live import Watcher\nw = Watcher({str(file)!r})")
    assert harness.value("w.refreshed", named=True) == "[]"
    os.utime(file, (2e9, 2e9))
    assert harness.value("w.refreshed", named=True) == repr([str(file)])
    assert harness.value("len(w.refreshed)", named=True) == "1"
    harness.eval("w.observer.alive = False")
    os.utime(file, (3e9, 3e9))
    assert harness.value("len(w.refreshed)", named=True) == "1"
