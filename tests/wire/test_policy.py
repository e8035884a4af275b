"""A request may tighten what a broker gives, and never loosen it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.policy import Policy, PolicyExceeded, SandboxLimits, SandboxOverrides, is_within, may_work_in, tighten
from replwire.protected import PROTECTED

PATHS = st.lists(st.sampled_from(["/a", "/a/b", "/a/bc", "/a/b/c", "/d", "/d/e"]), max_size=3, unique=True)
PROFILES = st.sampled_from(["read-only", "workspace-write", "off"])
NETWORKS = st.sampled_from(["none", "host"])
READS = st.sampled_from(["minimal", "host"])
SIZES = st.integers(64 << 20, 200 << 20)
COUNTS = st.integers(256, 600)
POLICIES = st.builds(
    Policy,
    profile=PROFILES,
    network=NETWORKS,
    read=READS,
    writable_paths=PATHS,
    readable_paths=PATHS,
    limits=st.builds(SandboxLimits, memory_bytes=SIZES, pids=COUNTS, open_files=COUNTS),
)
REQUESTS = st.builds(
    SandboxOverrides,
    profile=st.none() | PROFILES,
    network=st.none() | NETWORKS,
    read=st.none() | READS,
    writable_paths=st.none() | PATHS,
    readable_paths=st.none() | PATHS,
    protected_paths=st.none() | PATHS,
    memory_bytes=st.none() | SIZES,
    pids=st.none() | COUNTS,
    open_files=st.none() | COUNTS,
)
ORDERS = {"profile": ("read-only", "workspace-write", "off"), "network": ("none", "host"), "read": ("minimal", "host")}
POINTS = ["/a", "/a/b", "/a/bc", "/a/b/c", "/d", "/d/e", "/f"]


def reads(policy: Policy, path: str) -> bool:
    return policy.read == "host" or is_within(path, [*policy.readable_paths, *policy.writable_paths])


def no_looser(base: Policy, found: Policy) -> bool:
    return (
        all(order.index(getattr(found, name)) <= order.index(getattr(base, name)) for name, order in ORDERS.items())
        and all(getattr(found.limits, name) <= getattr(base.limits, name) for name in SandboxLimits.__struct_fields__)
        and all(is_within(path, base.writable_paths) for path in POINTS if is_within(path, found.writable_paths))
        and all(reads(base, path) for path in POINTS if reads(found, path))
        and set(base.protected_paths) <= set(found.protected_paths)
        and set(base.hidden_paths) <= set(found.hidden_paths)
        and found.workspaces == base.workspaces
    )


@given(POLICIES, REQUESTS)
def test_what_comes_of_a_request_is_never_looser(base: Policy, request: SandboxOverrides) -> None:
    try:
        found = tighten(base, request)
    except PolicyExceeded:
        return
    assert no_looser(base, found)


@given(POLICIES)
def test_asking_for_nothing_changes_nothing(base: Policy) -> None:
    assert tighten(base, SandboxOverrides()) == base


@given(POLICIES, REQUESTS)
def test_asking_twice_is_asking_once(base: Policy, request: SandboxOverrides) -> None:
    try:
        once = tighten(base, request)
    except PolicyExceeded:
        return
    assert tighten(once, request) == once


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (SandboxOverrides(profile="off"), "profile"),
        (SandboxOverrides(network="host"), "network"),
        (SandboxOverrides(read="host"), "read"),
        (SandboxOverrides(writable_paths=["/elsewhere"]), "writable-paths"),
        (SandboxOverrides(readable_paths=["/data-too"]), "readable-paths"),
        (SandboxOverrides(memory_bytes=2 << 30), "memory-bytes"),
        (SandboxOverrides(pids=257), "pids"),
    ],
)
def test_what_would_loosen_is_refused_by_name(request_: SandboxOverrides, field: str) -> None:
    base = Policy(writable_paths=["/out"], readable_paths=["/data"])
    with pytest.raises(PolicyExceeded) as caught:
        tighten(base, request_)
    assert caught.value.field == field


def test_a_broker_without_a_sandbox_can_be_asked_for_one() -> None:
    assert tighten(Policy(profile="off"), SandboxOverrides(profile="read-only")).profile == "read-only"


def test_a_part_of_what_is_granted_may_be_asked_for() -> None:
    base = Policy(writable_paths=["/out"], readable_paths=["/data"])
    found = tighten(base, SandboxOverrides(writable_paths=["/out/today"], readable_paths=["/data/x", "/out"]))
    assert (found.writable_paths, found.readable_paths) == (["/out/today"], ["/data/x", "/out"])


def test_taboos_add_up() -> None:
    found = tighten(Policy(), SandboxOverrides(protected_paths=["secrets", ".envrc"], hidden_paths=["/h"]))
    assert found.protected_paths == [*PROTECTED, "secrets"]
    assert found.hidden_paths == ["/h"]


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a/", "//a", "/a//b", "", ".", "/a\0b"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="writable-paths"):
        Policy(writable_paths=[path])
    with pytest.raises(ValueError, match="writable-paths"):
        tighten(Policy(writable_paths=["/"]), SandboxOverrides(writable_paths=[path]))


@pytest.mark.parametrize("path", ["../up", "a/../../b", "a/", ""])
def test_a_protected_path_does_not_climb(path: str) -> None:
    with pytest.raises(ValueError, match="protected-paths"):
        Policy(protected_paths=[path])


def test_a_limit_below_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="limits"):
        tighten(Policy(), SandboxOverrides(pids=0))


def test_a_directory_may_lie_anywhere_unless_workspaces_are_named() -> None:
    assert may_work_in(Policy(), "/anywhere")
    named = Policy(workspaces=["/work"])
    assert [may_work_in(named, path) for path in ("/work", "/work/a", "/workshop")] == [True, True, False]


def test_a_policy_is_written_in_kebab_case_and_unknown_words_are_refused() -> None:
    assert (
        msgspec.json.decode(
            b'{"profile":"read-only","limits":{"memory-bytes":134217728}}', type=Policy
        ).limits.memory_bytes
        == 128 << 20
    )
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"allow-all":true}', type=Policy)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"writable-paths":["a/../b"]}', type=Policy)
