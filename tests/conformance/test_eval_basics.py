"""Results and options of an eval (scenarios 28 to 68)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replwire.config import ConfigError, load
from scenarios import scenario
from transports import SMALL, BrokerSite


@scenario(28, 41, 50, 53)
def test_a_throw_away_eval_has_a_value_and_leaves_no_session(wire: Any) -> None:
    """REPLy's throw-away evals have no eval-id. Here they have, for `request-id` and `jobs` count them too."""
    answer = wire.run("1+1", session=None)
    assert (answer.value, answer.status) == ("2", ["done"])
    assert answer["ephemeral"] is True
    assert not any("repr-error" in message for message in answer.messages)
    assert wire.ask("ls-sessions")["sessions"] == []


@scenario(29)
def test_what_is_printed_comes_whole_and_before_the_value(wire: Any) -> None:
    answer = wire.run("print('hello', end='')\nprint(' world')\n1+1")
    assert (answer.out, answer.value) == ("hello world\n", "2")


@pytest.mark.parametrize("code", ["", "   ", "\n\t\n", "# nothing"])
@scenario(31)
def test_blank_code_has_the_value_of_nothing(wire: Any, code: str) -> None:
    answer = wire.run(code, session=None)
    assert [message.get("value") for message in answer.messages] == ["None", None]
    assert answer.status == ["done"]


@scenario(32, 35)
def test_an_exception_is_one_message_and_no_stderr(wire: Any) -> None:
    answer = wire.run("raise RuntimeError('boom')", session=None)
    assert len(answer.messages) == 1
    assert answer.status == ["done", "error"]
    assert answer["err"] == "RuntimeError: boom"
    assert answer["ex"] == {"type": "RuntimeError", "message": "boom"}
    assert (answer.err, answer.get("correlation-id")) == ("", None)


@scenario(34)
def test_code_that_does_not_parse_is_one_message_too(wire: Any) -> None:
    answer = wire.run("def broken(", session=None)
    assert len(answer.messages) == 1
    assert (answer.status, answer["ex"]["type"]) == (["done", "error"], "SyntaxError")


@scenario(37)
def test_a_loop_at_top_level_rebinds_and_warns_of_nothing(wire: Any) -> None:
    answer = wire.run("n = 0\nfor i in range(5):\n    n += i\nprint('ran')\nn")
    assert (answer.out, answer.err, answer.value) == ("ran\n", "", "10")


@scenario(38)
def test_a_value_whose_repr_raises_is_no_error(wire: Any) -> None:
    """REPLy sends `"value": null` with it; here `value` is absent, as everything is that has nothing to say."""
    answer = wire.run("class Bad:\n    def __repr__(self): raise KeyError('no')\nBad()")
    failed = next(message for message in answer.messages if "repr-error" in message)
    assert (failed["repr-error"], failed.get("value")) == ("KeyError", None)
    assert answer.status == ["done"]


@scenario(40)
def test_an_exception_says_what_its_string_form_says(wire: Any) -> None:
    answer = wire.run("class Odd(Exception):\n    def __str__(self): return 'from str'\nraise Odd", session=None)
    assert answer["ex"] == {"type": "Odd", "message": "from str"}
    answer = wire.run("class Mute(Exception):\n    def __str__(self): raise KeyError\nraise Mute", session=None)
    assert (answer.status, answer["ex"]["type"]) == (["done", "error"], "Mute")


@scenario(43, 44)
def test_a_value_is_cut_at_a_characters_boundary_and_only_past_the_limit(site: Callable[..., BrokerSite]) -> None:
    with site(*SMALL).wire() as wire:
        assert wire.run("'é' * 7").value == repr("é" * 7)  # 16 bytes with its quotes
        answer = wire.run("'é' * 8")
        assert answer.value == "'" + "é" * 7 + "…[truncated]"
        assert answer["truncated"] is True
        assert answer["dropped-bytes"] == 3


def test_a_limit_of_nothing_for_values_is_refused() -> None:
    """The other half of scenario 44."""
    for value in ("0", "-1"):
        with pytest.raises(ConfigError, match="max-value-bytes"):
            load(flags={"limits.max-value-bytes": value})


@scenario(46)
def test_evals_at_once_do_not_mix_their_output(wire: Any) -> None:
    requests = {
        name: wire.send("eval", code=f"for _ in range(200): print('{name}')", session=name, if_missing="create")
        for name in ("a", "b")
    }
    for name, request in requests.items():
        assert wire.answer(request).out == f"{name}\n" * 200


@scenario(47)
def test_three_evals_of_three_sessions_run_at_the_same_time(wire: Any, tmp_path: Path) -> None:
    """Each of them waits for the other two, which is surer than a clock."""
    code = (
        "import pathlib, time\nhere = pathlib.Path({directory!r})\n(here / {name!r}).touch()\n"
        "while len(list(here.iterdir())) < 3: time.sleep(.005)"
    )
    requests = [
        wire.send("eval", code=code.format(directory=str(tmp_path), name=name), session=name, if_missing="create")
        for name in "abc"
    ]
    assert [wire.answer(request).status for request in requests] == [["done"]] * 3


@scenario(49)
def test_two_clients_get_their_own_answers(site: Callable[..., BrokerSite]) -> None:
    with site().wire() as one, site().wire() as two:
        first = one.send("eval", code="10+1", session="a", if_missing="create")
        second = two.send("eval", code="20+2", session="b", if_missing="create")
        assert first == second  # the same id on two connections is two requests
        assert (two.answer(second).value, one.answer(first).value) == ("22", "11")


@scenario(52)
def test_evals_of_a_session_are_numbered_from_one(wire: Any) -> None:
    answers = [wire.run("1"), wire.run("2")]
    assert [answer["eval-id"] for answer in answers] == [1, 2]
    assert [answer.get("ephemeral") for answer in answers] == [None, None]


@scenario(58)
def test_code_that_may_not_read_gets_the_end_of_the_file(wire: Any) -> None:
    answer = wire.run("input()", allow_stdin=False)
    assert (answer.status, answer["ex"]["type"]) == (["done", "error"], "EOFError")


@pytest.mark.parametrize("limit", [0, -1, -100, "fast", 1.5, True, [1]])
@scenario(59, 61)
def test_a_time_limit_is_a_positive_integer(wire: Any, limit: object) -> None:
    """REPLy takes `true` for 1 ms; a boolean is no number here."""
    answer = wire.ask("eval", code="1", timeout_ms=limit)
    assert answer.status == ["done", "error", "invalid-request"]
    assert "timeout-ms" in answer["err"]


@scenario(62)
def test_silent_leaves_out_the_value_and_nothing_else(wire: Any) -> None:
    answer = wire.run("print('heard')\n42", silent=True)
    assert (answer.value, answer.out, answer.status) == (None, "heard\n", ["done"])
    assert wire.run("1/0", silent=True).status == ["done", "error"]


@scenario(64, 65, 67)
def test_the_last_values_have_names_unless_an_eval_leaves_no_trace(wire: Any) -> None:
    for number in (1, 2, 3):
        wire.run(str(number))
    assert wire.run("[___, __, _]", store_history=False).value == "[1, 2, 3]"
    assert wire.run("42", store_history=False).value == "42"
    assert wire.run("_").value == "3"


@scenario(67)
def test_history_is_bounded_and_forgets_the_oldest(site: Callable[..., BrokerSite]) -> None:
    with site(*SMALL).wire() as wire:
        for number in range(15):
            wire.run(str(number))
        jobs = wire.ask("jobs", session="s")["jobs"]
        assert [job["eval-id"] for job in jobs] == list(range(6, 16))


@pytest.mark.parametrize(
    "code", ["iter([])", "(lambda: 1)", "__import__('threading').Lock()", "type('T', (), {'__class__': 3})()", "..."]
)
@scenario(68)
def test_a_value_of_an_awkward_type_breaks_nothing(wire: Any, code: str) -> None:
    assert wire.run(code).status == ["done"]
    assert wire.run("1+1").value == "2"
