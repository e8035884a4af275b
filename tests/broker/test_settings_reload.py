"""Reload of the config file: settings that change at once, that need a restart, and files that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness import CoreHarness
from replbroker.core.operations.settings_reload import LiveSettings, RereadResult
from replwire.agents import AgentRules
from replwire.config import load
from replwire.limits import Limits

OTHER = b"p9"


def config(
    text: str = "", *, admins: tuple[str, ...] = (), warm: int = 0, idle: int = 0, **limits: int
) -> RereadResult:
    """Return the result of reading a config file."""
    live = LiveSettings(
        limits=Limits(**limits),
        agents=AgentRules(load(text).config.agents),
        identities=tuple(load(text).config.identities),
        admins=frozenset(admins),
        warm_workers=warm,
        idle_exit_ms=idle,
    )
    return RereadResult(live=live, reloaded=["limits.max-sessions"], needs_restart=["broker.tcp"])


def reload_config(harness: CoreHarness, reread: RereadResult) -> dict[str, Any]:
    harness.reread_result = reread
    return harness.request("reload-config")


def test_it_says_what_has_changed_and_what_needs_a_restart() -> None:
    harness = CoreHarness(audit=True)
    result = reload_config(harness, config())
    assert result["status"] == ["done"]
    assert (result["reloaded"], result["needs-restart"]) == (["limits.max-sessions"], ["broker.tcp"])
    assert harness.event_types()[-1] == "config/reloaded"
    assert (
        "the config file was read again: limits.max-sessions changed; needs a restart: broker.tcp" in harness.log_lines
    )
    assert [line.op for line in harness.audited] == ["reload-config"]


def test_limits_count_from_then_on() -> None:
    harness = CoreHarness(max_sessions=1)
    harness.open("a")
    assert "session-limit-reached" in harness.request("new-session", name="b")["status"]
    reload_config(harness, config(max_sessions=2))
    harness.open("b")
    assert harness.request("describe")["limits"]["max-sessions"] == 2


def test_quotas_of_identities_count_from_then_on() -> None:
    harness = CoreHarness()
    harness.core.set_identity(OTHER, "uid:7")
    reload_config(harness, config('[[identities]]\nname = "uid:7"\nquotas = { max-sessions = 1 }\n'))
    harness.request("new-session", OTHER, name="a")
    reply = harness.request("new-session", OTHER, name="b")
    assert (reply["status"][2:], reply["limit-value"]) == (["session-limit-reached"], 1)
    reload_config(harness, config())
    assert "done" in harness.request("new-session", OTHER, name="c")["status"]


def test_more_slots_are_given_to_who_waits_and_fewer_are_not_taken_away() -> None:
    harness = CoreHarness(max_concurrent_evals=1)
    for name in "abc":
        harness.open(name)
    evals = [harness.eval(name) for name in "abc"]
    assert harness.running_evals(*evals) == evals[:1]
    reload_config(harness, config(max_concurrent_evals=3))
    assert harness.running_evals(*evals) == evals
    reload_config(harness, config(max_concurrent_evals=1))
    assert harness.running_evals(*evals) == evals
    late = harness.eval("a", "2")
    for each in evals[:2]:
        harness.finish(each)
    assert harness.running_evals(late) == []
    harness.finish(evals[2])
    assert harness.running_evals(late) == [late]


def test_rules_and_admins_count_from_then_on() -> None:
    harness = CoreHarness()
    harness.core.set_identity(OTHER, "ci")
    assert "forbidden" in harness.request("introspect", OTHER)["status"]
    harness.open("work")
    assert harness.request("eval", session="work", code="1", agent="ada", mode="plan")["status"][-1] == "plan-mode"
    reload_config(harness, config('[[agents]]\nname = "eve"\nenabled = false\n', admins=("ci",)))
    assert harness.request("introspect", OTHER)["status"] == ["done"]
    assert "forbidden" in harness.request("ping", agent="eve")["status"]
    reload_config(harness, config())
    assert "forbidden" in harness.request("introspect", OTHER)["status"]
    assert "pong" in harness.request("ping", agent="eve")["status"]


def test_identities_count_from_then_on() -> None:
    harness = CoreHarness()
    assert harness.state.config.identities.get("ci") is None
    reload_config(harness, config('[[identities]]\nname = "ci"\nuser = "root"\n'))
    assert harness.state.config.identities.get("ci") is not None


def test_warm_workers_and_idle_times_count_from_then_on() -> None:
    harness = CoreHarness(session_idle_timeout_ms=3_600_000)
    harness.open("work")
    before = len(harness.spawned)
    reload_config(harness, config(warm=2, session_idle_timeout_ms=1000))
    assert len(harness.spawned) == before + 2
    harness.wait(20)
    assert not len(harness.state.sessions)


def test_a_file_that_cannot_be_used_changes_nothing_and_says_why() -> None:
    harness = CoreHarness(max_sessions=1, audit=True)
    result = reload_config(harness, RereadResult(error="c.toml: limits.max-sessions: Expected `int`, got `str`"))
    assert result["status"] == ["done", "error", "invalid-config"]
    assert result["err"].endswith("nothing has changed: c.toml: limits.max-sessions: Expected `int`, got `str`")
    assert harness.request("describe")["limits"]["max-sessions"] == 1
    assert "config/reloaded" not in harness.event_types()


def test_a_signal_is_told_to_the_log_and_the_audit_alone() -> None:
    harness = CoreHarness(audit=True)
    for reread, outcome in ((config(max_sessions=7), "ok"), (RereadResult(error="no"), "invalid-config")):
        harness.apply(harness.core.on_config_reread(reread, None, "", harness.now))
        assert (harness.audited[-1].op, harness.audited[-1].identity, harness.audited[-1].outcome) == (
            "reload-config",
            "broker",
            outcome,
        )
    assert harness.received == []
    assert harness.state.limits.max_sessions == 7


@pytest.mark.parametrize("mode", ["plan", "normal"])
def test_strangers_and_plan_mode_do_not_reload(mode: str) -> None:
    harness = CoreHarness()
    harness.reread_result = config(max_sessions=7)
    harness.core.set_identity(OTHER, "uid:1001")
    assert harness.request("reload-config", OTHER, mode=mode)["status"][-1] == (
        "plan-mode" if mode == "plan" else "forbidden"
    )
    assert harness.state.limits.max_sessions != 7
