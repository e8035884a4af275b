"""Evals in a module of the session (scenarios 55 and 56)."""

from __future__ import annotations

from typing import Any

from scenarios import scenario


@scenario(55)
def test_an_eval_may_run_in_a_module_that_the_session_has(wire: Any) -> None:
    made = "import sys, types\nhost = sys.modules['host'] = types.ModuleType('host')\nhost.inner = sys.modules['host.inner'] = types.ModuleType('host.inner')\nhost.inner.is_inner = lambda: True"
    assert wire.run(made).status == ["done"]
    assert wire.run("is_inner()", module="host.inner").value == "True"
    assert wire.run("is_inner()")["ex"]["type"] == "NameError"


@scenario(56)
def test_a_module_that_is_not_there_is_an_error(wire: Any) -> None:
    answer = wire.run("1", module="no.such.module")
    assert (answer.status[:2], answer.value) == (["done", "error"], None)
    assert "no.such.module" in answer["err"]
    assert wire.run("1+1").value == "2"
