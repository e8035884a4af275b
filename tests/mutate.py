"""Mutation testing of the broker's core: `python tests/mutate.py FILE... [--sample N] [--seconds S] [-m EXPRESSION]`.

A mutant changes one expression or statement in a function of one file. It is killed when a test that runs its line
fails, and survives when all of them pass. Each is tried in a fork of one process, which has imported what the tests
need, but nothing of `replbroker`. Random simulations take no part: what they find depends on the examples they draw.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/broker", "--ignore=tests/broker/test_simulation.py"]
QUIET = [
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--no-header",
    "--tb=no",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]
TIMEOUT_S = 120.0  # of one mutant: code that never ends is noticed by this
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed file."""

    path: Path
    line: int
    before: str
    after: str
    tree: ast.Module


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield each node that may take the place of this one."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp):
        changed: Any = copy.deepcopy(node)
        if isinstance(changed, ast.Compare):
            changed.ops[0] = SWAPS[type(changed.ops[0])]()
            yield changed
        elif type(changed.op) in SWAPS:
            changed.op = SWAPS[type(changed.op)]()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield ast.Pass()
    elif isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            yield ast.Pass()
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        negated: Any = copy.deepcopy(node)
        negated.test = ast.UnaryOp(ast.Not(), negated.test)
        yield negated


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file: changes in the bodies of its functions, neither annotations nor default values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    inside = {
        id(each)
        for function in nodes if isinstance(function, ast.FunctionDef)
        for statement in function.body for each in ast.walk(statement)
    }  # fmt: skip
    for node in nodes:
        if id(node) in inside and hasattr(node, "lineno"):
            for new in replacements(node):
                yield Mutant(path, node.lineno, _first_line(node), _first_line(new), _changed(tree, node, new))


def _changed(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    """Return a copy of the tree in which one node is another."""
    memo: dict[int, Any] = {id(old): ast.copy_location(new, old)}  # deepcopy takes what it has for the copy
    changed: ast.Module = copy.deepcopy(tree, memo)
    return ast.fix_missing_locations(changed)


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines()[0]


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Loads the changed file in the place of its module."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._code = compile(mutant.tree, str(mutant.path), "exec", dont_inherit=True)

    def get_code(self, _: str) -> CodeType:
        return self._code


class MutantFinder:
    """Finds the changed module before all others."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = ".".join(mutant.path.relative_to(ROOT / "broker").with_suffix("").parts)
        self._mutant = mutant

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._mutant.path, loader=MutantLoader(name, self._mutant))


class LineRecorder:
    """A pytest plugin that notes which test runs which line, and how long each test takes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = {str(path) for path in paths}
        self.tests: defaultdict[str, set[str]] = defaultdict(set)  # by "file:line"
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        lines: set[tuple[str, int]] = set()

        def trace(frame: FrameType, *_: object) -> Any:
            if frame.f_code.co_filename not in self._files:
                return None
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return trace

        began = time.perf_counter()
        sys.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.seconds[item.nodeid] = time.perf_counter() - began
            for file, line in lines:
                self.tests[f"{file}:{line}"].add(item.nodeid)


def in_fork(work: Callable[[], int], timeout_s: float) -> int | None:
    """Run `work` in a forked process without its output; return its exit code, or None when time ran out."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            quiet = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            os.setpgid(0, 0)
            code = work()
        finally:
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], timeout_s)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(pidfd)


def record(paths: Sequence[Path], expression: str) -> tuple[dict[str, list[str]], int]:
    """Return the tests of each "file:line", fastest first, and the number of tests. All of them must pass."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory, "lines")

        def work() -> int:
            recorder = LineRecorder(paths)
            code = pytest.main([*QUIET, "-m", expression, *TESTS], plugins=[recorder])
            by_line = {line: sorted(tests, key=recorder.seconds.__getitem__) for line, tests in recorder.tests.items()}
            result.write_text(json.dumps([by_line, len(recorder.seconds)]))
            return int(code)

        if in_fork(work, 600) != 0:
            sys.exit("the tests fail without any mutant")
        by_line, count = json.loads(result.read_text())
        return by_line, count


def survives(mutant: Mutant, tests: list[str]) -> bool:
    """Return whether all these tests pass with the mutant in place."""

    def work() -> int:
        sys.meta_path.insert(0, MutantFinder(mutant))  # type: ignore[arg-type]
        return int(pytest.main([*QUIET, *tests]))

    return in_fork(work, TIMEOUT_S) == 0


def main() -> None:
    """Try the mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, default=10**6, metavar="N", help="try N of each file's mutants [all]")
    parser.add_argument("--seconds", type=float, default=10**6, metavar="S", help="stop after this long [never]")
    parser.add_argument("-m", dest="expression", default="", help="take part: tests with these markers [all]")
    options = parser.parse_args()
    os.chdir(ROOT)
    for name in ("hypothesis", "msgspec", "replwire.config", "replwire.requests", "replwire.events"):
        importlib.import_module(name)
    deadline = time.monotonic() + options.seconds
    paths = [path.resolve() for path in options.files]
    by_line, count = record(paths, options.expression)
    print(f"{count} tests")
    tried = killed = 0
    for path in paths:
        found = list(mutants(path))
        chosen = random.Random(13).sample(found, min(options.sample, len(found)))
        for mutant in sorted(chosen, key=lambda each: each.line):
            if time.monotonic() > deadline:
                break
            tests = by_line.get(f"{path}:{mutant.line}", [])
            tried += 1
            if tests and not survives(mutant, tests):
                killed += 1
                continue
            why = "" if tests else "  (no test runs this line)"
            where = f"{path.relative_to(ROOT)}:{mutant.line}"
            print(f"{where}: {mutant.before}  ->  {mutant.after}{why}", flush=True)
        print(f"{path.relative_to(ROOT)}: {len(found)} mutants", flush=True)
    print(f"{tried} tried, {killed} killed, {tried - killed} survived")


if __name__ == "__main__":
    main()
