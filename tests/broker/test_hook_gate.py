"""Hooks in the core: which evals wait for a verdict, and what is stored of their code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire import events
from replwire.ext.verdicts import Allow, Block, RequireApproval
from replwire.link import FrameKind

ASKS = RequireApproval("Run it?", "because")


@pytest.fixture
def harness(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    harness = new_harness(hooks=True, hook_time_ms=500, approval_time_ms=10_000)
    harness.open()
    return harness


def test_an_eval_runs_when_the_hooks_allow_it_and_not_before(harness: CoreHarness) -> None:
    request = harness.eval(code="1+1", agent="ada", binding="chat")
    assert harness.running_evals(request) == []
    question = harness.hook_requests[0].question
    assert (question.op, question.code, question.agent, question.binding) == ("eval", "1+1", "ada", "chat")
    assert (question.name, question.runtime, question.identity) == ("work", "python", "self")
    harness.answer_hook(Allow())
    assert harness.running_evals(request) == [request]
    assert harness.finish(request)["status"] == ["done"]
    assert harness.is_idle()


def test_what_a_hook_blocks_does_not_run_and_says_whose_word_it_is(harness: CoreHarness) -> None:
    request = harness.eval(code="secret")
    harness.answer_hook(Block("line 1 is bad"), "guard/words")
    answer = harness.final_reply(request)
    assert answer["status"] == ["done", "error", "hook-blocked"]
    assert answer["err"] == "hook guard/words: line 1 is bad; the code did not run"
    assert answer["state"] == "kept"
    assert harness.is_idle()
    assert not harness.worker().frames(FrameKind.REQUEST)


def test_evals_of_a_session_run_in_the_order_they_came_whatever_hooks_take(harness: CoreHarness) -> None:
    first, second = harness.eval(code="a"), harness.eval(code="b")
    harness.apply(
        harness.core.handle_verdict(
            harness.hook_requests[1].route, harness.hook_requests[1].question, Allow(), None, harness.now
        )
    )
    assert harness.running_evals(first, second) == []
    harness.answer_hook(Allow())
    assert harness.running_evals(first, second) == [first]
    harness.finish(first)
    assert harness.running_evals(second) == [second]


def test_an_eval_that_was_not_judged_in_time_is_blocked_and_the_next_one_comes_up(harness: CoreHarness) -> None:
    slow, next_one = harness.eval(code="a"), harness.eval(code="b")
    late = harness.hook_requests[0]
    harness.apply(
        harness.core.handle_verdict(
            harness.hook_requests[1].route, harness.hook_requests[1].question, Allow(), None, harness.now
        )
    )
    harness.wait(0.6)
    assert harness.final_reply(slow)["err"] == "the hooks gave no verdict within 500 ms; the code did not run"
    assert harness.running_evals(next_one) == [next_one]
    harness.apply(harness.core.handle_verdict(late.route, late.question, Allow(), None, harness.now))
    assert harness.running_evals(slow, next_one) == [next_one]


def test_an_interrupt_ends_what_waits_for_hooks(harness: CoreHarness) -> None:
    request = harness.eval()
    harness.request("interrupt", session="work", all=True)
    assert harness.final_reply(request)["status"] == ["done", "interrupted"]
    harness.answer_hook(Allow())
    assert harness.is_idle()


def test_closing_a_session_ends_what_waits_for_hooks(harness: CoreHarness) -> None:
    request = harness.eval()
    harness.request("close", session="work")
    assert harness.final_reply(request)["status"] == ["done", "error", "session-not-found"]
    harness.answer_hook(Block("no"))
    assert harness.is_idle()


def test_a_throw_away_session_goes_with_the_eval_that_is_blocked(harness: CoreHarness) -> None:
    request = harness.eval(None)
    harness.answer_hook(Block("no"))
    assert "hook-blocked" in harness.final_reply(request)["status"]
    assert [session.name for session in harness.state.sessions] == ["work"]


def test_a_person_may_allow_what_a_hook_asks_about_once_and_for_this_code_alone(harness: CoreHarness) -> None:
    request = harness.eval(code="rm()")
    harness.answer_hook(ASKS)
    answer = harness.final_reply(request)
    assert answer["status"] == ["done", "error", "approval-needed"]
    approval = answer["approval"]
    assert (approval["hook"], approval["title"], approval["reason"]) == ("guard/words", "Run it?", "because")
    harness.eval(code="other()", approval=approval["id"])
    assert harness.hook_requests.pop().question.approved == frozenset()
    harness.eval(code="rm()", approval=approval["id"])
    assert harness.hook_requests.pop().question.approved == frozenset(), "it was spent on other code"


def test_an_approval_reaches_the_hooks_with_the_same_code(harness: CoreHarness) -> None:
    harness.eval(code="rm()", id="e1")
    harness.answer_hook(ASKS)
    harness.eval(code="rm()", approval=harness.final_reply("e1")["approval"]["id"], id="e2")
    assert harness.answer_hook(RequireApproval("And this?", "too"), "guard/second").question.approved == {"guard/words"}
    harness.eval(code="rm()", approval=harness.final_reply("e2")["approval"]["id"], id="e3")
    assert harness.answer_hook(Allow()).question.approved == {"guard/words", "guard/second"}
    assert harness.running_evals("e3") == ["e3"]


def test_an_approval_is_nobody_elses_and_ends(harness: CoreHarness) -> None:
    harness.eval(code="rm()", id="e1")
    harness.answer_hook(ASKS)
    approval = harness.final_reply("e1")["approval"]["id"]
    harness.core.set_identity(b"p9", "ann")
    harness.request("share", session="work", **{"with": "ann", "level": "write"})
    harness.eval(code="rm()", approval=approval, peer=b"p9")
    assert harness.hook_requests.pop().question.approved == frozenset()
    harness.eval(code="rm()", id="e2")
    harness.answer_hook(ASKS)
    harness.wait(11)
    harness.eval(code="rm()", approval=harness.final_reply("e2")["approval"]["id"])
    assert harness.hook_requests[-1].question.approved == frozenset()


def test_an_approval_is_good_in_another_throw_away_session(harness: CoreHarness) -> None:
    harness.eval(None, "rm()", id="e1")
    harness.answer_hook(ASKS)
    harness.eval(None, "rm()", approval=harness.final_reply("e1")["approval"]["id"])
    assert harness.answer_hook(Allow()).question.approved == {"guard/words"}


def test_open_approvals_are_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(hooks=True, rate_limit_per_min=0)
    for n in range(1100):
        harness.eval(code=f"rm({n})", id=f"e{n}", session=None)
        harness.answer_hook(ASKS)
    harness.eval(code="rm(0)", approval=harness.final_reply("e0")["approval"]["id"], session=None)
    assert harness.hook_requests.pop().question.approved == frozenset()


def test_code_that_is_not_let_run_is_kept_nowhere(harness: CoreHarness) -> None:
    request = harness.eval(code="password = 'hunter2'")
    harness.answer_hook(Block("no"))
    assert "hook-blocked" in harness.final_reply(request)["status"]
    shown = [harness.request(op, session="work") for op in ("jobs", "history")]
    assert "hunter2" not in str([*shown, *harness.events, *harness.log_lines, *harness.audited])


def test_code_that_is_let_run_is_told_when_it_starts(harness: CoreHarness) -> None:
    request = harness.eval(code="x = 1")
    harness.answer_hook(Allow())
    harness.finish(request)
    accepted = next(each for each in harness.events if isinstance(each, events.EvalAccepted))
    started = next(each for each in harness.events if isinstance(each, events.EvalStarted))
    assert (accepted.code, started.code) == ("", "x = 1")
    assert harness.request("history", session="work")["history"][0]["code"] == "x = 1"
    assert harness.request("jobs", session="work")["jobs"][0]["code"] == "x = 1"


def test_a_verdict_is_an_event_of_its_session(harness: CoreHarness) -> None:
    harness.eval(code="1", agent="ada")
    harness.answer_hook(Block("no"), "guard/words")
    harness.eval(code="1", agent="ada")
    harness.answer_hook(ASKS, "guard/words")
    results = [each for each in harness.events if isinstance(each, events.PolicyDecision)]
    assert [(each.verdict, each.code, each.reason, each.hook, each.agent) for each in results] == [
        ("block", "hook-blocked", "no", "guard/words", "ada"),
        ("ask", "approval-needed", "because", "guard/words", "ada"),
    ]
    assert {each.session for each in results} == {harness.session().id}


def test_a_key_may_be_used_again_for_what_was_not_let_run(harness: CoreHarness) -> None:
    harness.eval(code="1", idempotency_key="k", id="e1")
    harness.answer_hook(ASKS)
    harness.eval(code="1", idempotency_key="k", approval=harness.final_reply("e1")["approval"]["id"], id="e2")
    harness.answer_hook(Allow())
    assert harness.running_evals("e2") == ["e2"]


def test_what_waits_for_hooks_counts_as_queued_and_one_always_may(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(hooks=True, max_queued_evals=0)
    harness.open()
    waiting = harness.eval(agent="ada")
    assert "concurrency-limit-reached" in harness.request("eval", session="work", code="2", agent="ada")["status"]
    harness.answer_hook(Allow())
    assert harness.running_evals(waiting) == [waiting]


@pytest.mark.parametrize("op", ["load-file", "env"])
def test_what_else_takes_its_turn_is_judged_too(harness: CoreHarness, op: str) -> None:
    fields = {"load-file": {"file": "/f.py"}, "env": {"action": "add", "packages": ["six"]}}[op]
    request = harness.send(op, session="work", **fields)
    asked = harness.answer_hook(Block("no"))
    assert (asked.question.op, asked.question.code, asked.question.file) == (op, "", fields.get("file"))
    assert "hook-blocked" in harness.final_reply(request)["status"]


def test_nothing_is_asked_where_there_are_no_hooks(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness()
    harness.open()
    request = harness.eval()
    assert harness.running_evals(request) == [request]
    assert harness.hook_requests == []
