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
    "put-file": {"file": "/f"},
    "get-file": {"file": "/f"},
    "stdin": {"input": "x"},
    "allow-hosts": {"hosts": ["a.test"]},
    "env": {"action": "add", "packages": ["six"]},
    "clone": {"name": "copy"},
    "clone-session": {"name": "copy", "source": "work"},
    "close-session": {"name": "work"},
    "share": {"level": "read"},
    "drop-checkpoint": {"checkpoint": 1},
    "get-snapshot": {"snapshot": "0", "offset": 0},
    "put-snapshot": {"data": ""},
    "branch": {"name": "copy"},
    "transfer": {"who": "uid:7"},
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
def test_a_client_in_plan_mode_changes_nothing(harness: CoreHarness, op: str) -> None:
    harness.open("work")
    fields = {"session": "work"} | FIELDS.get(op, {})
    answer = harness.request(op, mode="plan", **fields)
    assert answer["status"] == ["done", "error", "plan-mode"]
    assert len(harness.state.sessions) == 1
    harness.finish(harness.eval())


def test_every_operation_says_whether_it_changes_anything() -> None:
    assert (
        sorted(
            [
                "complete",
                "describe",
                "diff",
                "find-eval",
                "get-snapshot",
                "get-file",
                "hello",
                "history",
                "info",
                "introspect",
                "jobs",
                "lookup",
                "ls-bindings",
                "ls-checkpoints",
                "ls-environments",
                "ls-sessions",
                "ping",
                "read",
                "save",
                "set-mode",
                "stack",
                "stats",
                "subscribe",
                "unsubscribe",
            ]
        )
        == ASKING
    )


def test_a_session_in_plan_mode_says_since_when_and_why(harness: CoreHarness) -> None:
    harness.open("work")
    assert harness.request("set-mode", session="work", to="plan", reason="review")["session-mode"] == "plan"
    for op in ("eval", "reset", "env", "close", "close-session"):
        answer = harness.request(op, **({"session": "work"} | FIELDS.get(op, {})))
        assert answer["status"][-1] == "plan-mode"
        assert answer["entered-reason"] == "review"
        assert answer["entered-at"].startswith("20")
    assert harness.request("jobs", session="work")["jobs"] == []
    assert harness.request("env", session="work", action="show")["status"] == ["done"]
    listing = harness.send("env", session="work", action="status")
    harness.finish(listing)
    copying = harness.send("clone", session="work", name="copy")
    harness.worker("work").send_snapshot(copying)
    assert harness.final_reply(copying)["name"] == "copy"
    harness.request("set-mode", session="work", to="normal")
    harness.finish(harness.eval())


def test_an_agent_that_is_not_enabled_is_refused_everything(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(agents=RULES)
    assert harness.request("ping", agent="bob")["status"] == ["done", "error", "forbidden"]
    assert harness.request("ping", agent="carl")["status"] == ["done", "pong"]


def test_an_agent_keeps_to_its_runtimes_and_its_sessions(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(agents=RULES, runtimes=("python", "node"))
    assert "runtime-not-allowed" in harness.request("new-session", agent="ada", runtime="node")["status"]
    assert harness.request("new-session", agent="ada", name="a")["created"] is True
    refused = harness.request("new-session", agent="ada", name="b")
    assert (refused["status"][-1], refused["limit"], refused["limit-value"]) == (
        "session-limit-reached",
        "max-sessions",
        1,
    )
    harness.request("close", session="a")
    assert harness.request("new-session", agent="ada", name="b")["created"] is True
    assert harness.request("new-session", agent="eve2", name="c", runtime="node")["created"] is True


def test_the_rule_of_a_binding_replaces_the_agents_own_as_a_whole(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(agents=RULES, runtimes=("python", "node"))
    for name in ("a", "b"):
        assert (
            harness.request("new-session", agent="ada", binding="phone", name=name, runtime="node")["created"] is True
        )
    assert "session-limit-reached" in harness.request("new-session", agent="ada", binding="phone")["status"]
    assert harness.session("a").limits.max_output_bytes == harness.state.limits.max_output_bytes


def test_an_agents_time_and_output_are_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(agents=RULES)
    running = harness.eval(agent="ada", timeout_ms=60_000)
    assert harness.session().limits.max_output_bytes == 1000
    harness.wait(0.6)
    assert harness.cancels()[0]["limit_ms"] == 500
    harness.finish(running, Outcome.TIMEOUT)


def test_an_agent_may_be_held_in_plan_mode(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(agents=RULES)
    assert "plan-mode" in harness.request("eval", agent="eve", code="1")["status"]
    assert harness.request("ls-sessions", agent="eve")["sessions"] == []


def test_every_request_is_audited_once(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(audit=True, rate_limit_per_min=7)
    running = harness.eval(agent="ada")
    harness.wait(0.25)
    harness.finish(running)
    harness.request("close", session="gone")
    harness.send_raw(b"{not json")
    harness.send_raw(b'{"id": 7}')
    harness.request("ping")
    for _ in range(2):
        harness.send("ping")
    results = [(each.op, each.agent, each.session, each.outcome) for each in harness.audited]
    assert results == [
        ("eval", "ada", "work", "ok"),
        ("close", None, "gone", "session-not-found"),
        (None, None, None, "malformed-request"),
        (None, None, None, "invalid-request"),
        ("ping", None, None, "pong"),
        ("ping", None, None, "pong"),
        ("ping", None, None, "pong"),
    ]
    assert [each.latency_ms for each in harness.audited] == [250.0, 0, 0, 0, 0, 0, 0]
    for _ in range(3):
        harness.send("ping")
    harness.wait(1)
    assert [each.outcome for each in harness.audited][-1] == "rate-limited"
    assert len(harness.state.audit) == 0


@pytest.mark.parametrize("op", ["close", "close-session"])
def test_the_audit_names_the_session_that_an_older_word_meant(new_harness: Callable[..., CoreHarness], op: str) -> None:
    harness = new_harness(audit=True)
    harness.open("work")
    harness.request(op, name="work")
    assert [(each.op, each.session) for each in harness.audited][-1] == (op, "work")


def test_a_client_that_goes_is_audited_with_what_it_left(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(audit=True)
    running = harness.eval()
    harness.disconnect(b"p1")
    harness.apply(harness.core.tick(harness.now))
    assert [each.outcome for each in harness.audited] == ["client-disconnected"]
    harness.finish_abandoned(running)
    assert len(harness.audited) == 1


def test_an_id_that_is_used_again_ends_the_earlier_record(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(audit=True)
    harness.send("eval", id="x", session="work", code="1", if_missing="create")
    harness.send("ping", id="x")
    assert [(each.op, each.outcome) for each in harness.audited] == [("eval", "id-used-again"), ("ping", "pong")]


def test_history_keeps_the_code_across_resets_and_within_its_bounds(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_history=3, history_bytes=20)
    for code in ("a = 1", "b = 2", "secret"):
        harness.finish(harness.eval(code=code, **({"store_history": False} if code == "secret" else {})))
    harness.request("reset", session="work")
    kept = harness.request("history", session="work")
    assert [(each["eval-id"], each["code"], each["epoch"]) for each in kept["history"]] == [
        (1, "a = 1", 1),
        (2, "b = 2", 1),
    ]
    assert [each["code"] for each in harness.request("history", session="work", grep="b")["history"]] == ["b = 2"]
    assert [each["code"] for each in harness.request("history", session="work", limit=1)["history"]] == ["b = 2"]
    harness.finish(harness.eval(code="x" * 16))
    assert [each["code"] for each in harness.request("history", session="work")["history"]] == ["x" * 16]
    harness.finish(harness.eval(code="é" * 4))
    assert [each["code"] for each in harness.request("history", session="work")["history"]] == ["é" * 4]


def test_names_can_be_asked_of_a_throw_away_session(harness: CoreHarness) -> None:
    asked = harness.send("complete", code="pri", pos=3)
    runner = harness.worker_running(asked)
    assert runner is not None
    runner.reply(asked, completions=[])
    assert harness.final_reply(asked)["completions"] == []
    assert len(harness.state.sessions) == 0
    assert harness.is_idle()
