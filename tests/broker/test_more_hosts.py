"""More hosts for a session: by a setting or a person, for a time, told to its workers, its watchers and the audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replbroker.core.operations import views
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replwire.events import NetworkHostsAdded, NetworkHostsRemoved
from replwire.link import FrameKind
from replwire.network import HostLists
from replwire.policy import Policy, SandboxOverrides

LIST = Policy(network="list", allowed_hosts=["pypi.org"], denied_hosts=["bad.test", "*.bad.test"])
RULES = """
[[agents]]
name = "free"
more-hosts = "allow"
[[agents]]
name = "strict"
more-hosts = "deny"
"""

Create = Callable[..., CoreHarness]


@pytest.fixture
def create(new_harness: Create) -> Create:
    def create(rule: str = "allow", policy: Policy | None = LIST, **settings: Any) -> CoreHarness:
        harness = new_harness(agents=RULES, max_host_time_ms=60_000, audit=True, **settings)
        state = harness.state
        state.config = dataclasses.replace(state.config, sandbox=SandboxStatus(policy=policy), more_hosts=rule)
        harness.open()
        return harness

    return create


def lists(harness: CoreHarness, session: str = "work") -> list[list[str]]:
    """Return the lists that a session's worker was sent since it was assigned, the first with that."""
    worker = harness.worker(session)
    rules = [body["network"] for _, body in worker.frames(FrameKind.ASSIGN)]
    rules += [body for _, body in worker.frames(FrameKind.NETWORK)]
    return [each["allowed-hosts"] for each in rules]


def test_a_setting_lets_a_session_reach_more_hosts_for_a_time(create: Create) -> None:
    harness = create("allow")
    answer = harness.request("allow-hosts", session="work", hosts=["api.test"], for_ms=30_000)
    assert (answer["status"], list(answer["more-hosts"])) == (["done"], ["api.test"])
    assert lists(harness) == [["pypi.org"], ["pypi.org", "api.test"]]
    assert views.info(harness.state, harness.session(), harness.now)["network"]["more-hosts"] == answer["more-hosts"]
    harness.wait(29)
    assert len(lists(harness)) == 2
    harness.wait(1.1)
    assert lists(harness)[2:] == [["pypi.org"]]
    assert "more-hosts" not in views.info(harness.state, harness.session(), harness.now)["network"]
    added, removed = (event for event in harness.events if isinstance(event, NetworkHostsAdded | NetworkHostsRemoved))
    assert isinstance(added, NetworkHostsAdded)
    assert isinstance(removed, NetworkHostsRemoved)
    assert (added.hosts, added.for_ms, added.approved) == (["api.test"], 30_000, False)
    assert (removed.hosts, removed.by) == (["api.test"], "time")


def test_each_entry_ends_in_its_own_time_and_all_at_once_by_request(create: Create) -> None:
    harness = create()
    harness.request("allow-hosts", session="work", hosts=["b.test", "c.test"])
    harness.request("allow-hosts", session="work", hosts=["a.test"], for_ms=1000)
    harness.wait(1.1)
    assert lists(harness)[-1] == ["pypi.org", "b.test", "c.test"]
    assert harness.request("allow-hosts", session="work")["more-hosts"] == {}
    assert lists(harness)[-1] == ["pypi.org"]
    assert [each.by for each in harness.events if isinstance(each, NetworkHostsRemoved)] == ["time", "request"]
    events = len(harness.events)
    harness.wait(61)
    assert len(harness.events) == events, "nothing ends twice"


def test_asking_again_prolongs(create: Create) -> None:
    harness = create()
    for _ in range(3):
        harness.request("allow-hosts", session="work", hosts=["a.test"], for_ms=2000)
        harness.wait(1.5)
    assert lists(harness)[-1] == ["pypi.org", "a.test"]


def test_the_next_worker_of_the_session_knows_them_and_no_other_session(create: Create) -> None:
    harness = create()
    harness.request("allow-hosts", session="work", hosts=["a.test"])
    harness.request("reset", session="work")
    assert lists(harness) == [["pypi.org", "a.test"]]
    harness.request("new-session", name="other")
    assert lists(harness, "other") == [["pypi.org"]]


def test_a_reload_of_the_lists_keeps_them(create: Create) -> None:
    harness = create()
    harness.request("allow-hosts", session="work", hosts=["a.test"])
    state = harness.state
    sandbox = state.config.sandbox.with_hosts(HostLists(["pypi.org", "b.test"]))
    state.config = dataclasses.replace(state.config, sandbox=sandbox)
    harness.request("allow-hosts", session="work", hosts=["c.test"])
    assert lists(harness)[-1] == ["pypi.org", "b.test", "a.test", "c.test"]


def test_a_person_has_to_approve_exactly_these_hosts_and_once(create: Create) -> None:
    harness = create("ask")
    refused = harness.request("allow-hosts", session="work", hosts=["a.test"], for_ms=5000)
    assert refused["status"] == ["done", "error", "approval-needed"]
    approval = refused["approval"]
    assert (approval["title"], approval["reason"]) == ("allow-hosts a.test for 5 s", "sandbox.more-hosts = ask")
    for fields in ({"hosts": ["b.test"], "for_ms": 5000}, {"hosts": ["a.test"], "for_ms": 6000}):
        other = harness.request("allow-hosts", session="work", approval=approval["id"], **fields)
        assert other["status"] == ["done", "error", "approval-needed"]
    assert len(lists(harness)) == 1
    done = harness.request("allow-hosts", session="work", hosts=["a.test"], for_ms=5000, approval=approval["id"])
    assert list(done["more-hosts"]) == ["a.test"]
    again = harness.request("allow-hosts", session="work", hosts=["a.test"], for_ms=5000, approval=approval["id"])
    assert again["status"] == ["done", "error", "approval-needed"]
    assert [each.approved for each in harness.events if isinstance(each, NetworkHostsAdded)] == [True]


def test_an_approval_is_used_up_where_hooks_judge_evals_too(create: Create) -> None:
    harness = create("ask", hooks=True)
    approval = harness.request("allow-hosts", session="work", hosts=["a.test"])["approval"]["id"]
    assert harness.request("allow-hosts", session="work", hosts=["a.test"], approval=approval)["status"] == ["done"]
    again = harness.request("allow-hosts", session="work", hosts=["a.test"], approval=approval)
    assert "approval-needed" in again["status"]


def test_to_take_hosts_back_nobody_has_to_approve(create: Create) -> None:
    harness = create("ask")
    assert harness.request("allow-hosts", session="work")["status"] == ["done"]


@pytest.mark.parametrize(
    ("rule", "agent", "status", "setting"),
    [
        ("deny", None, "forbidden", "sandbox.more-hosts = deny"),
        ("allow", "strict", "forbidden", "more-hosts of agent strict = deny"),
        ("ask", None, "approval-needed", "sandbox.more-hosts = ask"),
        ("deny", "free", None, ""),
    ],
)
def test_the_rule_of_an_agent_goes_before_that_of_all(
    create: Create, rule: str, agent: str | None, status: str | None, setting: str
) -> None:
    answer = create(rule).request("allow-hosts", session="work", hosts=["a.test"], agent=agent)
    assert answer["status"] == ["done", *(["error", status] if status else [])]
    assert setting in answer.get("err", "")


@pytest.mark.parametrize(
    ("fields", "err"),
    [
        ({"hosts": ["a.test/b"]}, "hosts: 'a.test/b' is not NAME"),
        ({"hosts": ["127.1"]}, "hosts: '127.1' is not NAME"),
        ({"hosts": ["127.0.0.1"]}, "inside a session this address is its own"),
        ({"hosts": ["*.a.test:5432"]}, "a wildcard may name ports below 1024 only"),
        ({"hosts": ["ok.test", "bad.test:80"]}, "bad.test:80 stays refused: sandbox.denied-hosts names it"),
        ({"hosts": ["x.bad.test"]}, "x.bad.test stays refused: sandbox.denied-hosts names it"),
        ({"hosts": ["a.test"], "for_ms": 60_001}, "max-host-time-ms = 60000"),
        ({"hosts": [f"h{n}.test" for n in range(100)]}, None),
    ],
)
def test_hosts_that_cannot_be_added_are_refused_before_anybody_is_asked(
    create: Create, fields: dict[str, Any], err: str | None
) -> None:
    harness = create("ask")
    answer = harness.request("allow-hosts", session="work", **fields)
    assert ("approval" in answer) is (err is None)
    assert (err or "a person has to approve") in answer["err"]
    assert len(lists(harness)) == 1


def test_a_session_has_at_most_so_many_entries(create: Create) -> None:
    harness = create()
    for start in (0, 100):
        hosts = [f"h{number}.test" for number in range(start, start + 100)]
        assert harness.request("allow-hosts", session="work", hosts=hosts)["status"] == ["done"]
    refused = harness.request("allow-hosts", session="work", hosts=[f"i{number}.test" for number in range(100)])
    assert "at most 256 entries" in refused["err"]


@pytest.mark.parametrize("policy", [Policy(), Policy(network="host"), None])
def test_only_a_session_with_a_list_can_have_more(create: Create, policy: Policy | None) -> None:
    answer = create(policy=policy).request("allow-hosts", session="work", hosts=["a.test"])
    assert answer["status"] == ["done", "error", "not-supported"]
    assert "no list of hosts" in answer["err"]


def test_a_port_of_its_own_is_told_to_need_a_reset(create: Create) -> None:
    answer = create().request("allow-hosts", session="work", hosts=["a.test:5432"])
    assert answer["notice"] == "ports other than 80 and 443 may need a reset of the session"


def test_every_addition_and_its_end_are_lines_of_the_audit(create: Create) -> None:
    harness = create("allow")
    harness.request("allow-hosts", session="work", hosts=["a.test", "b.test"], for_ms=1000)
    harness.wait(1.1)
    lines = [(line.outcome, line.err) for line in harness.audited if line.op == "network"]
    assert lines == [
        ("hosts-added", "a.test b.test for 1 s: the setting allows"),
        ("hosts-removed", "a.test b.test: by time"),
    ]


def test_a_closed_session_leaves_no_timer(create: Create) -> None:
    harness = create()
    before = len(harness.state.deadlines)
    harness.request("allow-hosts", session="work", hosts=["a.test"])
    assert len(harness.state.deadlines) == before + 1
    harness.request("close", session="work")
    assert len(harness.state.deadlines) <= before


def test_a_refusal_names_the_way_where_there_is_one(create: Create) -> None:
    for rule, may_grow in (("deny", False), ("ask", True), ("allow", True)):
        harness = create(rule)
        assert harness.state.config.network_rules(harness.session()).may_grow is may_grow


def test_a_session_with_a_shorter_list_of_its_own_is_widened_too(create: Create) -> None:
    harness = create(policy=Policy(network="list", allowed_hosts=["pypi.org", "b.test"]))
    harness.request("new-session", name="narrow", allowed_hosts=["b.test"])
    harness.request("allow-hosts", session="narrow", hosts=["c.test"])
    assert lists(harness, "narrow") == [["b.test"], ["b.test", "c.test"]]
    assert harness.state.config.sandbox.covers(SandboxOverrides(), harness.session("narrow").spec.sandbox_overrides)
