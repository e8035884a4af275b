"""The page's list of attacks that are no program in a session is the list of tests that try them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_index import INDEXED_ATTACKS, IndexedAttack
from file_attacks import FILE_ATTACKS
from package_attacks import PACKAGE_ATTACKS
from state_attacks import STATE_ATTACKS

ROOT = Path(__file__).parents[2]
ATTACKS = [*INDEXED_ATTACKS, *PACKAGE_ATTACKS, *STATE_ATTACKS, *FILE_ATTACKS]
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def test_the_table_is_the_list() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = re.findall(
        r"^\| (broker|session|start-up|network|packages|files) \| ([^|]*) \| ([^|]*) \| `([^|]*)` \|$", text, re.M
    )
    assert rows == [tuple(each) for each in ATTACKS]


@pytest.mark.parametrize("each", ATTACKS, ids=lambda each: each.attack)
def test_each_is_tried(each: IndexedAttack) -> None:
    file, _, name = each.test.partition("::")
    assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text()


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_neither_broker_nor_worker_loads_objects() -> None:
    """The interpreter, in its sandbox, is excepted: it makes and loads snapshots."""
    inside = ROOT / "worker/replworker/runtimes/python/replharness"
    files = [*ROOT.glob("broker/**/*.py"), *ROOT.glob("worker/**/*.py"), *ROOT.glob("wire/**/*.py")]
    outside = {path: set(imported(ast.parse(path.read_text()))) for path in files if inside not in path.parents}
    assert len(outside) > 80
    assert {path.name: names & LOADERS for path, names in outside.items() if names & LOADERS} == {}
