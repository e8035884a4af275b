"""Names, files, clones and the old words for them (scenarios 118 to 161)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios import scenario
from transports import BrokerSite

Open = Callable[..., BrokerSite]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose files may be loaded."""
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def loading(site: Open, library: Path) -> Any:
    """A connection to a broker that allows it."""
    with site(f'session.load-paths=["{library}"]').wire() as wire:
        wire.run("1")
        yield wire


def _names(wire: Any) -> list[str]:
    return sorted(entry["name"] for entry in wire.ask("ls-sessions")["sessions"])


# --- clones and old words ---


@scenario(118)
def test_close_session_goes_by_name_and_nothing_else(wire: Any) -> None:
    wire.run("x = 1")
    assert wire.ask("close-session", session="s").status == ["done", "error", "invalid-request"]
    assert wire.run("x").value == "1"
    assert wire.ask("close-session", name="s").status[0] == "done"
    assert _names(wire) == []


@scenario(121, 122)
def test_a_clone_has_its_own_copy_of_everything(wire: Any) -> None:
    """In REPLy a cloned name cannot be bound again; here it can, and the source does not see it."""
    wire.run("data = {'a': [1]}\nnumber = 1\ndef f(): return number")
    answer = wire.ask("clone", session="s", name="copy")
    assert answer.status == ["done"]
    assert answer["new-session"] == answer["session"]
    assert len(answer["new-session"]) == 36
    assert answer["name"] == "copy"
    assert not answer.get("skipped")
    wire.run("data['a'].append(2)\nnumber = 2", session="copy")
    assert wire.run("data, number, f()", session="copy").value == "({'a': [1, 2]}, 2, 2)"
    assert wire.run("data, number, f()").value == "({'a': [1]}, 1, 1)"


def test_a_clone_by_its_old_word_and_the_old_name_of_its_source(wire: Any) -> None:
    wire.run("x = 1")
    assert wire.ask("clone", source="s", name="a").status == ["done"]
    answer = wire.ask("clone-session", source="s", name="b")
    assert (answer.status, answer["name"], answer.get("new-session")) == (["done"], "b", None)
    assert [wire.run("x", session=name).value for name in "ab"] == ["1", "1"]


@scenario(124)
def test_a_clone_needs_a_source_and_a_free_name(wire: Any) -> None:
    wire.run("1")
    for fields in ({"name": "copy"}, {"session": "s"}, {"session": "s", "name": "bad name!"}):
        assert wire.ask("clone", **fields).status == ["done", "error", "invalid-request"]
    assert wire.ask("clone", session="none", name="copy").status == ["done", "error", "session-not-found"]
    assert wire.ask("clone", session="s", name="s").status == ["done", "error", "session-already-exists"]
    assert _names(wire) == ["s"]


@scenario(125)
def test_a_clone_is_light_or_not_at_all(wire: Any) -> None:
    """REPLy's `not-supported` comes without `error`; here every refusal has it."""
    wire.run("1")
    assert wire.ask("clone", session="s", name="light", type="light").status == ["done"]
    assert wire.ask("clone", session="s", name="heavy", type="heavy").status == ["done", "error", "not-supported"]
    assert wire.ask("clone", session="s", name="medium", type="medium").status == ["done", "error", "invalid-request"]
    assert _names(wire) == ["light", "s"]


@scenario(128)
def test_what_cannot_be_copied_is_listed_and_the_rest_comes_along(wire: Any) -> None:
    """In REPLy the whole clone fails."""
    wire.run("x = 1\nstuck = (n for n in range(3))\nnext(stuck)")
    answer = wire.ask("clone", session="s", name="copy")
    assert answer.status == ["done"]
    assert [left["name"] for left in answer["skipped"]] == ["stuck"]
    assert answer["skipped"][0]["why"]
    assert wire.run("x", session="copy").value == "1"
    assert wire.run("stuck", session="copy")["ex"]["type"] == "NameError"
    assert wire.run("next(stuck)").value == "1"


# --- names ---


@scenario(146)
def test_a_name_is_completed(wire: Any) -> None:
    """REPLy sends the list and the end as two messages; here it is one."""
    wire.run("printable_thing = 1")
    answer = wire.ask("complete", code="pri", pos=3, session="s")
    items = answer["completions"]
    assert all(isinstance(item["text"], str) and isinstance(item["type"], str) for item in items)
    assert {"print", "printable_thing"} <= {item["text"].rstrip("(") for item in items}


@scenario(148)
def test_completion_needs_code_and_a_position(wire: Any) -> None:
    for fields in ({"pos": 3}, {"code": "pri"}, {"code": 3, "pos": 3}, {"code": "pri", "pos": "3"}):
        answer = wire.ask("complete", session="s", **fields)
        assert answer.status == ["done", "error", "invalid-request"]
        assert "code" in answer["err"] or "pos" in answer["err"]
    wire.run("1")
    for pos in (-1, 99):
        assert wire.ask("complete", session="s", code="pri", pos=pos)["completions"] == []


@scenario(149, 152)
def test_a_name_is_looked_up_with_its_text_and_methods(wire: Any) -> None:
    wire.run("from math import hypot")
    for name in ("print", "hypot"):
        answer = wire.ask("lookup", symbol=name, session="s")
        assert (answer["found"], answer["name"]) == (True, name)
        assert answer["type"]
        assert answer["doc"]
        assert all(isinstance(method, str) for method in answer.get("methods") or [])
    assert wire.ask("lookup", symbol="no_such_name", session="s")["found"] is False


@scenario(151)
def test_a_lookup_runs_nothing(wire: Any, tmp_path: Path) -> None:
    wire.run("1")
    trap = tmp_path / "trap"
    code = f"open({str(trap)!r}, 'w')"
    assert wire.ask("lookup", symbol=code, session="s")["found"] is False
    assert wire.ask("lookup", symbol="print", module=code, session="s").status[0] == "done"
    wire.run(f"class Evil:\n    @property\n    def p(self): {code}\nevil = Evil()")
    wire.ask("lookup", symbol="evil.p", session="s")
    wire.ask("complete", code="evil.", pos=5, session="s")
    assert not trap.exists()


@scenario(154)
def test_bindings_are_listed_by_name_with_their_types(wire: Any) -> None:
    wire.run("x = 42\ns = 'hi'\ndef f(): pass")
    answer = wire.ask("ls-bindings", session="s")
    assert answer["bindings"] == [
        {"name": "f", "type": "function"},
        {"name": "s", "type": "str"},
        {"name": "x", "type": "int"},
    ]
    assert (answer["count"], answer["ns"]) == (3, "__main__")


@scenario(155)
def test_what_the_user_did_not_bind_is_no_binding(wire: Any) -> None:
    wire.run("import math, os.path as p\n_hidden = 1\n1")
    answer = wire.ask("ls-bindings", session="s")
    assert (answer["bindings"], answer["count"]) == ([], 0)
    assert wire.ask("ls-bindings").status == ["done", "error", "invalid-request"]


# --- files ---


def test_no_file_may_be_loaded_unless_the_broker_says_so(wire: Any, library: Path) -> None:
    (library / "any.py").write_text("1\n")
    wire.run("1")
    for file in (library / "any.py", "/no/such", "any.py"):
        answer = wire.ask("load-file", session="s", file=str(file))
        assert answer.status == ["done", "error", "path-not-allowed"]
        assert answer["err"].startswith("load-file requires an explicit allowlist")


@scenario(157)
def test_a_file_runs_as_an_eval_does(loading: Any, library: Path) -> None:
    file = library / "prints.py"
    file.write_text("print('from a file')\nhere = __file__\n")
    answer = loading.ask("load-file", session="s", file=str(file))
    assert (answer.out, answer.status) == ("from a file\n", ["done"])
    assert loading.run("here").value == repr(str(file))
    file.write_text("def broken(")
    broken = loading.ask("load-file", session="s", file=str(file))
    assert (broken.status, broken["ex"]["type"]) == (["done", "error"], "SyntaxError")


@scenario(158)
def test_a_file_that_is_not_there_is_told_without_its_path(loading: Any, library: Path) -> None:
    answer = loading.ask("load-file", session="s", file=str(library / "none.py"))
    assert answer.status == ["done", "error", "file-not-found"]
    assert str(library) not in json.dumps(answer.messages)
    denied = loading.ask("load-file", session="s", file="/etc/passwd")
    assert denied.status == ["done", "error", "path-not-allowed"]
    assert "/etc" not in json.dumps(denied.messages)


@scenario(160)
def test_a_file_must_be_named_and_its_value_is_bounded(loading: Any, library: Path) -> None:
    for file in (None, 3, ["a"]):
        answer = loading.ask("load-file", session="s", file=file)
        assert answer.status == ["done", "error", "invalid-request"]
        assert "file" in answer["err"]
    (library / "long.py").write_text("'x' * 1_000_000\n")
    answer = loading.ask("load-file", session="s", file=str(library / "long.py"))
    assert answer.value.endswith("…[truncated]")
    assert answer["truncated"] is True


@scenario(161)
def test_a_file_that_has_changed_is_loaded_anew(loading: Any, library: Path) -> None:
    file = library / "changing.py"
    file.write_text("def f(): return 'old'\ndef gone(): pass\n")
    assert loading.ask("load-file", session="s", file=str(file)).status == ["done"]
    assert loading.run("f()").value == "'old'"
    file.write_text("def f(): return 'new'\n")
    assert loading.ask("reload-file", session="s", file=str(file)).status == ["done"]
    assert loading.run("f()").value == "'new'"
    assert loading.run("gone")["ex"]["type"] == "NameError"
    for fields, word in (
        ({"file": str(file)}, "invalid-request"),
        ({"session": "s"}, "invalid-request"),
        ({"session": "s", "file": "/etc/passwd"}, "path-not-allowed"),
    ):
        assert loading.ask("reload-file", **fields).status == ["done", "error", word]


@scenario(89)
def test_a_file_takes_its_turn_between_evals(loading: Any, library: Path) -> None:
    (library / "second.py").write_text("seen.append('file')\n")
    loading.run("seen = []")
    requests = [
        loading.send("eval", code="seen.append('first')", session="s"),
        loading.send("load-file", file=str(library / "second.py"), session="s"),
        loading.send("eval", code="seen.append('last')", session="s"),
    ]
    assert [loading.answer(request).status for request in requests] == [["done"]] * 3
    assert loading.run("seen").value == "['first', 'file', 'last']"
