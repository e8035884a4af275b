"""A new config file in a broker that runs: what changes at once, what is only named, and what changes nothing."""

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
    """The file says this now."""
    live = LiveSettings(
        limits=Limits(**limits),
        agents=AgentRules(load(text).config.agents),
        identities=tuple(load(text).config.identities),
        admins=frozenset(admins),
        warm_workers=warm,
        idle_exit_ms=idle,
    )
    return RereadResult(live=live, reloaded=["limits.max-sessions"], needs_restart=["broker.tcp"])


def reload_config(table: CoreHarness, reread: RereadResult) -> dict[str, Any]:
    table.reread_result = reread
    return table.request("reload-config")


def test_it_says_what_has_changed_and_what_needs_a_restart() -> None:
    table = CoreHarness(audit=True)
    told = reload_config(table, config())
    assert told["status"] == ["done"]
    assert (told["reloaded"], told["needs-restart"]) == (["limits.max-sessions"], ["broker.tcp"])
    assert table.event_types()[-1] == "config/reloaded"
    assert "the config file was read again: limits.max-sessions changed; needs a restart: broker.tcp" in table.log_lines
    assert [line.op for line in table.audited] == ["reload-config"]


def test_limits_count_from_then_on() -> None:
    table = CoreHarness(max_sessions=1)
    table.open("a")
    assert "session-limit-reached" in table.request("new-session", name="b")["status"]
    reload_config(table, config(max_sessions=2))
    table.open("b")
    assert table.request("describe")["limits"]["max-sessions"] == 2


def test_quotas_of_identities_count_from_then_on() -> None:
    table = CoreHarness()
    table.core.set_identity(OTHER, "uid:7")
    reload_config(table, config('[[identities]]\nname = "uid:7"\nquotas = { max-sessions = 1 }\n'))
    table.request("new-session", OTHER, name="a")
    told = table.request("new-session", OTHER, name="b")
    assert (told["status"][2:], told["limit-value"]) == (["session-limit-reached"], 1)
    reload_config(table, config())
    assert "done" in table.request("new-session", OTHER, name="c")["status"]


def test_more_slots_are_given_to_who_waits_and_fewer_are_not_taken_away() -> None:
    table = CoreHarness(max_concurrent_evals=1)
    for name in "abc":
        table.open(name)
    evals = [table.eval(name) for name in "abc"]
    assert table.running_evals(*evals) == evals[:1]
    reload_config(table, config(max_concurrent_evals=3))
    assert table.running_evals(*evals) == evals
    reload_config(table, config(max_concurrent_evals=1))
    assert table.running_evals(*evals) == evals
    late = table.eval("a", "2")
    for each in evals[:2]:
        table.finish(each)
    assert table.running_evals(late) == []
    table.finish(evals[2])
    assert table.running_evals(late) == [late]


def test_rules_and_admins_count_from_then_on() -> None:
    table = CoreHarness()
    table.core.set_identity(OTHER, "ci")
    assert "forbidden" in table.request("introspect", OTHER)["status"]
    table.open("work")
    assert table.request("eval", session="work", code="1", agent="ada", mode="plan")["status"][-1] == "plan-mode"
    reload_config(table, config('[[agents]]\nname = "eve"\nenabled = false\n', admins=("ci",)))
    assert table.request("introspect", OTHER)["status"] == ["done"]
    assert "forbidden" in table.request("ping", agent="eve")["status"]
    reload_config(table, config())
    assert "forbidden" in table.request("introspect", OTHER)["status"]
    assert "pong" in table.request("ping", agent="eve")["status"]


def test_identities_count_from_then_on() -> None:
    table = CoreHarness()
    assert table.state.config.identities.get("ci") is None
    reload_config(table, config('[[identities]]\nname = "ci"\nuser = "root"\n'))
    assert table.state.config.identities.get("ci") is not None


def test_warm_workers_and_idle_times_count_from_then_on() -> None:
    table = CoreHarness(session_idle_timeout_ms=3_600_000)
    table.open("work")
    before = len(table.spawned)
    reload_config(table, config(warm=2, session_idle_timeout_ms=1000))
    assert len(table.spawned) == before + 2
    table.wait(20)
    assert not len(table.state.sessions)


def test_a_file_that_cannot_be_used_changes_nothing_and_says_why() -> None:
    table = CoreHarness(max_sessions=1, audit=True)
    told = reload_config(table, RereadResult(error="c.toml: limits.max-sessions: Expected `int`, got `str`"))
    assert told["status"] == ["done", "error", "invalid-config"]
    assert told["err"].endswith("nothing has changed: c.toml: limits.max-sessions: Expected `int`, got `str`")
    assert table.request("describe")["limits"]["max-sessions"] == 1
    assert "config/reloaded" not in table.event_types()


def test_a_signal_is_told_to_the_log_and_the_audit_alone() -> None:
    table = CoreHarness(audit=True)
    for reread, outcome in ((config(max_sessions=7), "ok"), (RereadResult(error="no"), "invalid-config")):
        table.apply(table.core.on_config_reread(reread, None, "", table.now))
        assert (table.audited[-1].op, table.audited[-1].identity, table.audited[-1].outcome) == (
            "reload-config",
            "broker",
            outcome,
        )
    assert table.received == []
    assert table.state.limits.max_sessions == 7


@pytest.mark.parametrize("mode", ["plan", "normal"])
def test_strangers_and_plan_mode_do_not_reload(mode: str) -> None:
    table = CoreHarness()
    table.reread_result = config(max_sessions=7)
    table.core.set_identity(OTHER, "uid:1001")
    assert table.request("reload-config", OTHER, mode=mode)["status"][-1] == (
        "plan-mode" if mode == "plan" else "forbidden"
    )
    assert table.state.limits.max_sessions != 7
