"""Names are the field's own, one class a name, and docstrings open with an imperative or a noun phrase."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "worker", "broker", "cli", "bench", "docs", "tests")
RULES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("language.toml").read_text(encoding="utf-8"))
OPENING = re.compile(rf"({'|'.join(RULES['banned-openings'])})\b")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@cache
def sources(package: str) -> dict[Path, list[ast.AST]]:
    """Return the syntax nodes of each file of a package, by its path in the repository; the first is the module."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT): list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def defined(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield each identifier that a file defines: classes, functions, arguments, variables, attributes of `self`."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def members(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield each name of a function, a method, a field of a class or an attribute of `self`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (
                each.target.id for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            )  # fmt: skip
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(identifier: str) -> tuple[str, ...]:
    """Return the words of an identifier: `_HandOver` and `hand_over` are `hand` and `over`."""
    return tuple(word.lower() for word in _PARTS.findall(identifier))


def test_a_class_name_is_unique_in_the_repository() -> None:
    places = defaultdict(list)
    for package in PACKAGES:
        for path, nodes in sources(package).items():
            for node in getattr(nodes[0], "body", ()):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_identifiers_have_no_retired_words(package: str) -> None:
    retired = {tuple(word.split("-")): word for word in RULES["retired"]}
    found: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for path, nodes in sources(package).items():
        for name in set(defined(nodes)):
            text = "" if name.startswith("test_") else "-".join(words(name))  # the name of a test is a sentence
            parts = tuple(re.sub(rf"\b({'|'.join(RULES['terms'])})\b", "", text).split("-"))
            for sequence, word in retired.items():
                if any(parts[at : at + len(sequence)] == sequence for at in range(len(parts))):
                    found[word][name] = path
    assert found == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_bare_participle_names_a_function_or_an_attribute(package: str) -> None:
    where = [
        f"{path}: {name}"
        for path, nodes in sources(package).items()
        for name in sorted(set(members(nodes)))
        if name.lstrip("_") in RULES["participles"] and name not in RULES["protocol-fields"]
    ]
    assert where == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_opens_with_a_clause(package: str) -> None:
    found = []
    for path, nodes in sources(package).items():
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = (ast.get_docstring(node) or "").partition("\n")[0]
                if OPENING.match(text):
                    found.append(f"{path}:{getattr(node, 'lineno', 1)}: {text}")
    assert found == []
