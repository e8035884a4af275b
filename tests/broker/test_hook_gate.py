"""Hooks, as the core knows them: what is judged, what waits for it, what is kept of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire import events
from replwire.ext.verdicts import Allow, Block, RequireApproval
from replwire.link import FrameKind

ASKS = RequireApproval("Run it?", "because")


@pytest.fixture
def table(new_table: Callable[..., CoreHarness]) -> CoreHarness:
    table = new_table(hooks=True, hook_time_ms=500, approval_time_ms=10_000)
    table.open()
    return table


def test_an_eval_runs_when_the_hooks_allow_it_and_not_before(table: CoreHarness) -> None:
    request = table.eval(code="1+1", agent="ada", binding="chat")
    assert table.running_evals(request) == []
    question = table.hook_requests[0].question
    assert (question.op, question.code, question.agent, question.binding) == ("eval", "1+1", "ada", "chat")
    assert (question.name, question.runtime, question.identity) == ("work", "python", "self")
    table.answer_hook(Allow())
    assert table.running_evals(request) == [request]
    assert table.finish(request)["status"] == ["done"]
    assert table.is_idle()


def test_what_a_hook_blocks_does_not_run_and_says_whose_word_it_is(table: CoreHarness) -> None:
    request = table.eval(code="secret")
    table.answer_hook(Block("line 1 is bad"), "guard/words")
    answer = table.final_reply(request)
    assert answer["status"] == ["done", "error", "hook-blocked"]
    assert answer["err"] == "hook guard/words: line 1 is bad; the code did not run"
    assert answer["state"] == "kept"
    assert table.is_idle()
    assert not table.worker().frames(FrameKind.REQUEST)


def test_evals_of_a_session_run_in_the_order_they_came_whatever_hooks_take(table: CoreHarness) -> None:
    first, second = table.eval(code="a"), table.eval(code="b")
    table.apply(
        table.core.handle_verdict(
            table.hook_requests[1].route, table.hook_requests[1].question, Allow(), None, table.now
        )
    )
    assert table.running_evals(first, second) == []
    table.answer_hook(Allow())
    assert table.running_evals(first, second) == [first]
    table.finish(first)
    assert table.running_evals(second) == [second]


def test_an_eval_that_was_not_judged_in_time_is_blocked_and_the_next_one_comes_up(table: CoreHarness) -> None:
    slow, next_one = table.eval(code="a"), table.eval(code="b")
    late = table.hook_requests[0]
    table.apply(
        table.core.handle_verdict(
            table.hook_requests[1].route, table.hook_requests[1].question, Allow(), None, table.now
        )
    )
    table.wait(0.6)
    assert table.final_reply(slow)["err"] == "the hooks gave no verdict within 500 ms; the code did not run"
    assert table.running_evals(next_one) == [next_one]
    table.apply(table.core.handle_verdict(late.route, late.question, Allow(), None, table.now))
    assert table.running_evals(slow, next_one) == [next_one]


def test_an_interrupt_ends_what_waits_for_hooks(table: CoreHarness) -> None:
    request = table.eval()
    table.request("interrupt", session="work", all=True)
    assert table.final_reply(request)["status"] == ["done", "interrupted"]
    table.answer_hook(Allow())
    assert table.is_idle()


def test_closing_a_session_ends_what_waits_for_hooks(table: CoreHarness) -> None:
    request = table.eval()
    table.request("close", session="work")
    assert table.final_reply(request)["status"] == ["done", "error", "session-not-found"]
    table.answer_hook(Block("no"))
    assert table.is_idle()


def test_a_throw_away_session_goes_with_the_eval_that_is_blocked(table: CoreHarness) -> None:
    request = table.eval(None)
    table.answer_hook(Block("no"))
    assert "hook-blocked" in table.final_reply(request)["status"]
    assert [session.name for session in table.state.sessions] == ["work"]


def test_a_person_may_allow_what_a_hook_asks_about_once_and_for_this_code_alone(table: CoreHarness) -> None:
    request = table.eval(code="rm()")
    table.answer_hook(ASKS)
    answer = table.final_reply(request)
    assert answer["status"] == ["done", "error", "approval-needed"]
    approval = answer["approval"]
    assert (approval["hook"], approval["title"], approval["reason"]) == ("guard/words", "Run it?", "because")
    table.eval(code="other()", approval=approval["id"])
    assert table.hook_requests.pop().question.approved == frozenset()
    table.eval(code="rm()", approval=approval["id"])
    assert table.hook_requests.pop().question.approved == frozenset(), "it was spent on other code"


def test_an_approval_reaches_the_hooks_with_the_same_code(table: CoreHarness) -> None:
    table.eval(code="rm()", id="e1")
    table.answer_hook(ASKS)
    table.eval(code="rm()", approval=table.final_reply("e1")["approval"]["id"], id="e2")
    assert table.answer_hook(RequireApproval("And this?", "too"), "guard/second").question.approved == {"guard/words"}
    table.eval(code="rm()", approval=table.final_reply("e2")["approval"]["id"], id="e3")
    assert table.answer_hook(Allow()).question.approved == {"guard/words", "guard/second"}
    assert table.running_evals("e3") == ["e3"]


def test_an_approval_is_nobody_elses_and_ends(table: CoreHarness) -> None:
    table.eval(code="rm()", id="e1")
    table.answer_hook(ASKS)
    approval = table.final_reply("e1")["approval"]["id"]
    table.core.set_identity(b"p9", "ann")
    table.request("share", session="work", **{"with": "ann", "level": "write"})
    table.eval(code="rm()", approval=approval, peer=b"p9")
    assert table.hook_requests.pop().question.approved == frozenset()
    table.eval(code="rm()", id="e2")
    table.answer_hook(ASKS)
    table.wait(11)
    table.eval(code="rm()", approval=table.final_reply("e2")["approval"]["id"])
    assert table.hook_requests[-1].question.approved == frozenset()


def test_an_approval_is_good_in_another_throw_away_session(table: CoreHarness) -> None:
    table.eval(None, "rm()", id="e1")
    table.answer_hook(ASKS)
    table.eval(None, "rm()", approval=table.final_reply("e1")["approval"]["id"])
    assert table.answer_hook(Allow()).question.approved == {"guard/words"}


def test_open_approvals_are_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(hooks=True, rate_limit_per_min=0)
    for n in range(1100):
        table.eval(code=f"rm({n})", id=f"e{n}", session=None)
        table.answer_hook(ASKS)
    table.eval(code="rm(0)", approval=table.final_reply("e0")["approval"]["id"], session=None)
    assert table.hook_requests.pop().question.approved == frozenset()


def test_code_that_is_not_let_run_is_kept_nowhere(table: CoreHarness) -> None:
    request = table.eval(code="password = 'hunter2'")
    table.answer_hook(Block("no"))
    assert "hook-blocked" in table.final_reply(request)["status"]
    shown = [table.request(op, session="work") for op in ("jobs", "history")]
    assert "hunter2" not in str([*shown, *table.events, *table.log_lines, *table.audited])


def test_code_that_is_let_run_is_told_when_it_starts(table: CoreHarness) -> None:
    request = table.eval(code="x = 1")
    table.answer_hook(Allow())
    table.finish(request)
    accepted = next(each for each in table.events if isinstance(each, events.EvalAccepted))
    started = next(each for each in table.events if isinstance(each, events.EvalStarted))
    assert (accepted.code, started.code) == ("", "x = 1")
    assert table.request("history", session="work")["history"][0]["code"] == "x = 1"
    assert table.request("jobs", session="work")["jobs"][0]["code"] == "x = 1"


def test_a_verdict_is_an_event_of_its_session(table: CoreHarness) -> None:
    table.eval(code="1", agent="ada")
    table.answer_hook(Block("no"), "guard/words")
    table.eval(code="1", agent="ada")
    table.answer_hook(ASKS, "guard/words")
    told = [each for each in table.events if isinstance(each, events.PolicyDecision)]
    assert [(each.verdict, each.word, each.reason, each.hook, each.agent) for each in told] == [
        ("block", "hook-blocked", "no", "guard/words", "ada"),
        ("ask", "approval-needed", "because", "guard/words", "ada"),
    ]
    assert {each.session for each in told} == {table.session().id}


def test_a_key_may_be_used_again_for_what_was_not_let_run(table: CoreHarness) -> None:
    table.eval(code="1", idempotency_key="k", id="e1")
    table.answer_hook(ASKS)
    table.eval(code="1", idempotency_key="k", approval=table.final_reply("e1")["approval"]["id"], id="e2")
    table.answer_hook(Allow())
    assert table.running_evals("e2") == ["e2"]


def test_what_waits_for_hooks_counts_as_queued_and_one_always_may(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(hooks=True, max_queued_evals=0)
    table.open()
    waiting = table.eval(agent="ada")
    assert "concurrency-limit-reached" in table.request("eval", session="work", code="2", agent="ada")["status"]
    table.answer_hook(Allow())
    assert table.running_evals(waiting) == [waiting]


@pytest.mark.parametrize("op", ["load-file", "env"])
def test_what_else_takes_its_turn_is_judged_too(table: CoreHarness, op: str) -> None:
    fields = {"load-file": {"file": "/f.py"}, "env": {"action": "add", "packages": ["six"]}}[op]
    request = table.send(op, session="work", **fields)
    asked = table.answer_hook(Block("no"))
    assert (asked.question.op, asked.question.code, asked.question.file) == (op, "", fields.get("file"))
    assert "hook-blocked" in table.final_reply(request)["status"]


def test_nothing_is_asked_where_there_are_no_hooks(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table()
    table.open()
    request = table.eval()
    assert table.running_evals(request) == [request]
    assert table.hook_requests == []
