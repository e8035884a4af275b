"""The house keeps its books: every scenario is played, covered elsewhere, or left out for a reason; never two of these."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from scenarios import ELSEWHERE, LEFT_OUT, TITLES
from stream_rules import StreamRules


def _played() -> set[int]:
    """Numbers in `@scenario(…)` over all tests of this directory."""
    calls = (
        decorator
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "scenario"
    )
    return {ast.literal_eval(argument) for call in calls for argument in call.args}


def test_every_scenario_stands_in_exactly_one_book() -> None:
    books = Counter([*_played(), *ELSEWHERE, *LEFT_OUT])
    assert sorted(books) == sorted(TITLES)
    assert [number for number, count in books.items() if count > 1] == []


def test_what_is_covered_elsewhere_has_tests_there() -> None:
    root = Path(__file__).parents[2]
    assert [
        directory for directory in sorted(set(ELSEWHERE.values())) if not list((root / directory).glob("test_*.py"))
    ] == []


def test_every_reason_is_given() -> None:
    assert all(len(reason.split()) >= 3 for reason in LEFT_OUT.values())


DONE = {"id": "a", "status": ["done"]}
BREACHES = [
    [DONE, DONE],
    [{"id": "a", "value": "1"}, {"id": "a", "out": "x"}],
    [{"id": "a", "value": "1"}, {"id": "a", "err": "x"}],
    [{"id": "a", "value": "1"}, {"id": "a", "value": "2"}],
    [DONE, {"id": "a", "out": "x"}],
    [{"id": "a", "status": ["done", "error"]}],
    [{"id": "a", "status": ["error"]}],
    [{"id": "a", "eval_id": 1}],
    [{"id": "a", "sessions": [{"created_at": 1}]}],
    [{"id": "", "out": "x"}],
]


@pytest.mark.parametrize("stream", BREACHES, ids=str)
def test_the_rules_catch_every_breach(stream: list[dict[str, object]]) -> None:
    rules = StreamRules()
    *before, last = stream
    for message in before:
        rules.see(message)
    with pytest.raises(AssertionError):
        rules.see(last)


def test_the_rules_let_pass_what_is_right() -> None:
    rules = StreamRules()
    rules.sent("a")
    for message in (
        {"id": "a", "created": True},
        {"id": "b", "out": "other"},
        {"id": "a", "status": ["queued"]},
        {"id": "a", "out": "x"},
        {"id": "a", "err": "stderr"},
        {"id": "a", "status": ["need-input"]},
        {"id": "a", "value": "1"},
        DONE,
        {"id": "b", "status": ["done", "error"], "err": "why"},
    ):
        rules.see(message)
    rules.sent("a")
    rules.see(DONE)


def test_the_rules_catch_a_key_that_the_contract_of_the_operation_does_not_have() -> None:
    rules = StreamRules()
    rules.sent("a", "ping")
    rules.see({"id": "a", "status": ["queued"], "hint": "any answer may have one"})
    with pytest.raises(AssertionError, match="value"):
        rules.see({"id": "a", "value": "1"})
