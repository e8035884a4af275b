"""Plan mode, the rules of `[[agents]]`, and the audit of who asked what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import Outcome
from replwire.ops import OPS

CHANGING = sorted(op for op, kind in OPS.items() if kind.changes)
ASKING = sorted(op for op, kind in OPS.items() if not kind.changes)
FIELDS = {
    "eval": {"code": "1"},
    "load-file": {"file": "/f"},
    "reload-file": {"file": "/f"},
    "stdin": {"input": "x"},
    "env": {"action": "add", "packages": ["six"]},
    "clone": {"name": "copy"},
    "clone-session": {"name": "copy", "source": "work"},
    "close-session": {"name": "work"},
    "share": {"level": "read"},
    "hand-over": {"who": "uid:7"},
    "unsubscribe": {"subscription": "r0"},
    "remove-environment": {"environment": "@data"},
}
RULES = """
[[agents]]
name = "ada"
allowed-runtimes = ["python"]
max-sessions = 1
timeout-ms = 500
max-output-bytes = 1000
[[agents.bindings]]
name = "phone"
max-sessions = 2
[[agents]]
name = "bob"
enabled = false
[[agents]]
name = "eve"
mode = "plan"
"""


@pytest.mark.parametrize("op", CHANGING)
def test_a_client_in_plan_mode_changes_nothing(table: CoreHarness, op: str) -> None:
    table.open("work")
    fields = {"session": "work"} | FIELDS.get(op, {})
    answer = table.request(op, mode="plan", **fields)
    assert answer["status"] == ["done", "error", "plan-mode"]
    assert len(table.state.sessions) == 1
    table.finish(table.eval())


def test_every_operation_says_whether_it_changes_anything() -> None:
    assert (
        sorted(
            [
                "complete",
                "describe",
                "hello",
                "history",
                "info",
                "introspect",
                "jobs",
                "lookup",
                "ls-bindings",
                "ls-environments",
                "ls-sessions",
                "ping",
                "read",
                "set-mode",
                "stack",
                "stats",
                "subscribe",
                "unsubscribe",
            ]
        )
        == ASKING
    )


def test_a_session_in_plan_mode_says_since_when_and_why(table: CoreHarness) -> None:
    table.open("work")
    assert table.request("set-mode", session="work", to="plan", reason="review")["session-mode"] == "plan"
    for op in ("eval", "reset", "env", "close", "close-session"):
        answer = table.request(op, **({"session": "work"} | FIELDS.get(op, {})))
        assert answer["status"][-1] == "plan-mode"
        assert answer["entered-reason"] == "review"
        assert answer["entered-at"].startswith("20")
    assert table.request("jobs", session="work")["jobs"] == []
    assert table.request("env", session="work", action="show")["status"] == ["done"]
    listing = table.send("env", session="work", action="list")
    table.finish(listing)
    copying = table.send("clone", session="work", name="copy")
    table.worker("work").send_snapshot(copying)
    assert table.final_reply(copying)["name"] == "copy"
    table.request("set-mode", session="work", to="normal")
    table.finish(table.eval())


def test_an_agent_that_is_not_enabled_is_refused_everything(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(agents=RULES)
    assert table.request("ping", agent="bob")["status"] == ["done", "error", "forbidden"]
    assert table.request("ping", agent="carl")["status"] == ["done", "pong"]


def test_an_agent_keeps_to_its_runtimes_and_its_sessions(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(agents=RULES, runtimes=("python", "node"))
    assert "runtime-not-allowed" in table.request("new-session", agent="ada", runtime="node")["status"]
    assert table.request("new-session", agent="ada", name="a")["created"] is True
    refused = table.request("new-session", agent="ada", name="b")
    assert (refused["status"][-1], refused["limit"], refused["limit-value"]) == (
        "session-limit-reached",
        "max-sessions",
        1,
    )
    table.request("close", session="a")
    assert table.request("new-session", agent="ada", name="b")["created"] is True
    assert table.request("new-session", agent="eve2", name="c", runtime="node")["created"] is True


def test_the_rule_of_a_binding_replaces_the_agents_own_as_a_whole(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(agents=RULES, runtimes=("python", "node"))
    for name in ("a", "b"):
        assert table.request("new-session", agent="ada", binding="phone", name=name, runtime="node")["created"] is True
    assert "session-limit-reached" in table.request("new-session", agent="ada", binding="phone")["status"]
    assert table.session("a").limits.max_output_bytes == table.state.limits.max_output_bytes


def test_an_agents_time_and_output_are_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(agents=RULES)
    running = table.eval(agent="ada", timeout_ms=60_000)
    assert table.session().limits.max_output_bytes == 1000
    table.wait(0.6)
    assert table.cancels()[0]["limit_ms"] == 500
    table.finish(running, Outcome.TIMEOUT)


def test_an_agent_may_be_held_in_plan_mode(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(agents=RULES)
    assert "plan-mode" in table.request("eval", agent="eve", code="1")["status"]
    assert table.request("ls-sessions", agent="eve")["sessions"] == []


def test_every_request_is_audited_once(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(audit=True, rate_limit_per_min=7)
    running = table.eval(agent="ada")
    table.wait(0.25)
    table.finish(running)
    table.request("close", session="gone")
    table.send_raw(b"{not json")
    table.send_raw(b'{"id": 7}')
    table.request("ping")
    for _ in range(2):
        table.send("ping")
    told = [(each.op, each.agent, each.session, each.outcome) for each in table.audited]
    assert told == [
        ("eval", "ada", "work", "ok"),
        ("close", None, "gone", "session-not-found"),
        (None, None, None, "malformed-request"),
        (None, None, None, "invalid-request"),
        ("ping", None, None, "pong"),
        ("ping", None, None, "pong"),
        ("ping", None, None, "pong"),
    ]
    assert [each.latency_ms for each in table.audited] == [250.0, 0, 0, 0, 0, 0, 0]
    for _ in range(3):
        table.send("ping")
    table.wait(1)
    assert [each.outcome for each in table.audited][-1] == "rate-limited"
    assert len(table.state.audit) == 0


@pytest.mark.parametrize("op", ["close", "close-session"])
def test_the_audit_names_the_session_that_an_older_word_meant(new_table: Callable[..., CoreHarness], op: str) -> None:
    table = new_table(audit=True)
    table.open("work")
    table.request(op, name="work")
    assert [(each.op, each.session) for each in table.audited][-1] == (op, "work")


def test_a_client_that_goes_is_audited_with_what_it_left(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(audit=True)
    running = table.eval()
    table.disconnect(b"p1")
    table.apply(table.core.tick(table.now))
    assert [each.outcome for each in table.audited] == ["client-gone"]
    table.finish_abandoned(running)
    assert len(table.audited) == 1


def test_an_id_that_is_used_again_ends_the_earlier_record(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(audit=True)
    table.send("eval", id="x", session="work", code="1", if_missing="create")
    table.send("ping", id="x")
    assert [(each.op, each.outcome) for each in table.audited] == [("eval", "id-used-again"), ("ping", "pong")]


def test_history_keeps_the_code_across_resets_and_within_its_bounds(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_history=3, history_bytes=20)
    for code in ("a = 1", "b = 2", "secret"):
        table.finish(table.eval(code=code, **({"store_history": False} if code == "secret" else {})))
    table.request("reset", session="work")
    kept = table.request("history", session="work")
    assert [(each["eval-id"], each["code"], each["epoch"]) for each in kept["history"]] == [
        (1, "a = 1", 1),
        (2, "b = 2", 1),
    ]
    assert [each["code"] for each in table.request("history", session="work", grep="b")["history"]] == ["b = 2"]
    assert [each["code"] for each in table.request("history", session="work", limit=1)["history"]] == ["b = 2"]
    table.finish(table.eval(code="x" * 16))
    assert [each["code"] for each in table.request("history", session="work")["history"]] == ["x" * 16]
    table.finish(table.eval(code="é" * 4))
    assert [each["code"] for each in table.request("history", session="work")["history"]] == ["é" * 4]


def test_names_can_be_asked_of_a_throw_away_session(table: CoreHarness) -> None:
    asked = table.send("complete", code="pri", pos=3)
    runner = table.worker_running(asked)
    assert runner is not None
    runner.reply(asked, completions=[])
    assert table.final_reply(asked)["completions"] == []
    assert len(table.state.sessions) == 0
    assert table.is_idle()
