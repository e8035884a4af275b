"""A new config file in a broker that runs: what changes at once, what is only named, and what changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from broker_kit import Table
from replbroker.core.reload import LiveSettings, Reread
from replwire.agents import Agents
from replwire.config import load
from replwire.limits import Limits

OTHER = b"p9"


def config(text: str = "", *, admins: tuple[str, ...] = (), warm: int = 0, idle: int = 0, **limits: int) -> Reread:
    """The file says this now."""
    live = LiveSettings(
        limits=Limits(**limits),
        agents=Agents(load(text).config.agents),
        identities=tuple(load(text).config.identities),
        admins=frozenset(admins),
        warm_workers=warm,
        idle_exit_ms=idle,
    )
    return Reread(live=live, reloaded=["limits.max-sessions"], needs_restart=["broker.tcp"])


def reloads(table: Table, reread: Reread) -> dict[str, Any]:
    table.config = reread
    return table.said("reload-config")


def test_it_says_what_has_changed_and_what_needs_a_restart() -> None:
    table = Table(audit=True)
    told = reloads(table, config())
    assert told["status"] == ["done"]
    assert (told["reloaded"], told["needs-restart"]) == (["limits.max-sessions"], ["broker.tcp"])
    assert table.types()[-1] == "config/reloaded"
    assert "the config file was read again: limits.max-sessions changed; needs a restart: broker.tcp" in table.notes
    assert [line.op for line in table.audited] == ["reload-config"]


def test_limits_count_from_then_on() -> None:
    table = Table(max_sessions=1)
    table.open("a")
    assert "session-limit-reached" in table.said("new-session", name="b")["status"]
    reloads(table, config(max_sessions=2))
    table.open("b")
    assert table.said("describe")["limits"]["max-sessions"] == 2


def test_quotas_of_identities_count_from_then_on() -> None:
    table = Table()
    table.core.meet(OTHER, "uid:7")
    reloads(table, config('[[identities]]\nname = "uid:7"\nquotas = { max-sessions = 1 }\n'))
    table.said("new-session", OTHER, name="a")
    told = table.said("new-session", OTHER, name="b")
    assert (told["status"][2:], told["limit-value"]) == (["session-limit-reached"], 1)
    reloads(table, config())
    assert "done" in table.said("new-session", OTHER, name="c")["status"]


def test_more_slots_are_given_to_who_waits_and_fewer_are_not_taken_away() -> None:
    table = Table(max_concurrent_evals=1)
    for name in "abc":
        table.open(name)
    evals = [table.eval(name) for name in "abc"]
    assert table.running(*evals) == evals[:1]
    reloads(table, config(max_concurrent_evals=3))
    assert table.running(*evals) == evals
    reloads(table, config(max_concurrent_evals=1))
    assert table.running(*evals) == evals
    late = table.eval("a", "2")
    for each in evals[:2]:
        table.finish(each)
    assert table.running(late) == []
    table.finish(evals[2])
    assert table.running(late) == [late]


def test_rules_and_admins_count_from_then_on() -> None:
    table = Table()
    table.core.meet(OTHER, "ci")
    assert "forbidden" in table.said("introspect", OTHER)["status"]
    table.open("work")
    assert table.said("eval", session="work", code="1", agent="ada", mode="plan")["status"][-1] == "plan-mode"
    reloads(table, config('[[agents]]\nname = "eve"\nenabled = false\n', admins=("ci",)))
    assert table.said("introspect", OTHER)["status"] == ["done"]
    assert "forbidden" in table.said("ping", agent="eve")["status"]
    reloads(table, config())
    assert "forbidden" in table.said("introspect", OTHER)["status"]
    assert "pong" in table.said("ping", agent="eve")["status"]


def test_identities_count_from_then_on() -> None:
    table = Table()
    assert table.state.setup.identities.get("ci") is None
    reloads(table, config('[[identities]]\nname = "ci"\nuser = "root"\n'))
    assert table.state.setup.identities.get("ci") is not None


def test_warm_workers_and_idle_times_count_from_then_on() -> None:
    table = Table(session_idle_timeout_ms=3_600_000)
    table.open("work")
    before = len(table.spawned)
    reloads(table, config(warm=2, session_idle_timeout_ms=1000))
    assert len(table.spawned) == before + 2
    table.wait(20)
    assert not len(table.state.sessions)


def test_a_file_that_cannot_be_used_changes_nothing_and_says_why() -> None:
    table = Table(max_sessions=1, audit=True)
    told = reloads(table, Reread(error="c.toml: limits.max-sessions: Expected `int`, got `str`"))
    assert told["status"] == ["done", "error", "invalid-config"]
    assert told["err"].endswith("nothing has changed: c.toml: limits.max-sessions: Expected `int`, got `str`")
    assert table.said("describe")["limits"]["max-sessions"] == 1
    assert "config/reloaded" not in table.types()


def test_a_signal_is_told_to_the_log_and_the_audit_alone() -> None:
    table = Table(audit=True)
    for reread, outcome in ((config(max_sessions=7), "ok"), (Reread(error="no"), "invalid-config")):
        table.do(table.core.reread(reread, None, "", table.now))
        assert (table.audited[-1].op, table.audited[-1].identity, table.audited[-1].outcome) == (
            "reload-config",
            "broker",
            outcome,
        )
    assert table.received == []
    assert table.state.limits.max_sessions == 7


@pytest.mark.parametrize("mode", ["plan", "normal"])
def test_strangers_and_plan_mode_do_not_reload(mode: str) -> None:
    table = Table()
    table.config = config(max_sessions=7)
    table.core.meet(OTHER, "uid:1001")
    assert table.said("reload-config", OTHER, mode=mode)["status"][-1] == (
        "plan-mode" if mode == "plan" else "forbidden"
    )
    assert table.state.limits.max_sessions != 7
