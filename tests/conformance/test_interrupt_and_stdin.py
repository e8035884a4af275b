"""Interrupts and input (scenarios 136 to 145)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scenarios import scenario
from transports import SMALL, BrokerSite

LOOP = "print('in', flush=True)\nwhile True: pass"


def _running(wire: Any, session: str = "s") -> str:
    request = wire.send("eval", code=LOOP, session=session, if_missing="create")
    assert next(message for message in wire.messages(request) if "out" in message)
    return str(request)


@scenario(136)
def test_an_interrupt_of_an_idle_session_finds_nothing_and_is_no_error(wire: Any) -> None:
    """REPLy says `"interrupted-id": null`; here the key is absent."""
    wire.run("1")
    answer = wire.ask("interrupt", session="s")
    assert (answer.status, answer["interrupted"], answer.get("interrupted-id")) == (["done"], [], None)
    assert wire.run("1+1").value == "2"


@scenario(137)
def test_an_interrupt_of_no_session_is_refused(wire: Any) -> None:
    assert wire.ask("interrupt", session="missing").status == ["done", "error", "session-not-found"]
    answer = wire.ask("interrupt")
    assert answer.status == ["done", "error", "invalid-request"]
    assert "session" in answer["err"]


@scenario(139, 140)
def test_an_interrupt_by_number_meets_that_eval_alone(wire: Any) -> None:
    wire.run("kept = 5")
    request = _running(wire)
    assert wire.ask("interrupt", session="s", interrupt_id=99)["interrupted"] == []
    assert wire.ask("ls-sessions")["sessions"][0]["running"] == 2
    answer = wire.ask("interrupt", session="s", interrupt_id=2)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["s"], 2)
    ended = wire.answer(request)
    assert (ended.status, ended["eval-id"], ended.out) == (["done", "interrupted"], 2, "")  # "in" was read before
    assert wire.run("kept").value == "5"


@scenario(142)
def test_input_reaches_the_eval_that_waits_for_it(wire: Any) -> None:
    request = wire.send("eval", code="input('? ')", session="s", if_missing="create")
    assert wire.until(request, "need-input")["eval-id"] == 1
    assert wire.ask("stdin", session="s", input="forty-two\n")["delivered"] == ["s"]
    assert wire.answer(request).value == "'forty-two'"


@scenario(143)
def test_input_reaches_one_eval_after_the_other(wire: Any) -> None:
    for word in ("one", "two"):
        request = wire.send("eval", code="input()", session="s", if_missing="create")
        wire.until(request, "need-input")
        wire.ask("stdin", session="s", input=f"{word}\n")
        assert wire.answer(request).value == repr(word)
    assert wire.ask("stdin", session="s", input="early\n")["buffered"] == ["s"]
    assert wire.run("input()").value == "'early'"


@scenario(145)
def test_input_beyond_the_buffer_is_refused_and_nothing_waits(site: Callable[..., BrokerSite]) -> None:
    """REPLy blocks the request when its buffer is full."""
    with site(*SMALL).wire() as wire:
        wire.run("1")
        assert wire.ask("stdin", session="s", input="x" * 490).status == ["done"]
        answer = wire.ask("stdin", session="s", input="y" * 20)
        assert answer.status == ["done", "error", "stdin-buffer-full"]
        assert (answer["limit"], answer["limit-value"]) == ("max-stdin-bytes", 500)
        assert wire.ask("stdin", session="s", input="\n").status == ["done"]
        assert wire.run("len(input())").value == "490"
