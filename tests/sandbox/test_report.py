"""Layers from the observations of the self-test, and advice from the messages of bubblewrap."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from replwire.policy import Policy
from replworker.sandbox.report import (
    LAYERS,
    REQUIRED,
    HostObservation,
    HostSettings,
    evaluate,
    explain_failure,
    failed_report,
)

HELD: dict[str, Any] = {
    "status": {"CapEff": "0" * 16, "CapPrm": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"},
    "secret": "ENOENT",
    "outside": "ENOENT",
    "root": "EROFS",
    "sysctl": "EACCES",
    "signal": "ESRCH",
    "tcp": "ECONNREFUSED",
    "abstract": "ECONNREFUSED",
    "path-socket": "ENOENT",
    "vsock": "EAFNOSUPPORT",
    "io-uring": "EPERM",
    "userns": "EPERM",
    "walk": "EACCES",
    "variables": ["HOME", "PWD"],
    "namespaces": {name: f"{name}:[2]" for name in ("mnt", "pid", "net", "ipc", "uts")},
    "limits": {"open-files": 256, "file-bytes": 256 << 20, "pids": 256},
    "tmp": 64 << 20,
    "workspace": "done",
}
OUTSIDE = HostObservation(
    uid=1000,
    namespaces={name: f"{name}:[1]" for name in ("mnt", "pid", "net", "ipc", "uts")},
    grouped=frozenset({"memory", "pids", "cpu"}),
    late_error=None,
    group_problem=None,
    landlock_abi=7,
    variables=frozenset({"HOME", "PATH"}),
)


def test_a_canary_that_was_held_everywhere_reports_every_layer() -> None:
    report = evaluate(Policy(), HELD, OUTSIDE)
    assert report.layers == dict.fromkeys(LAYERS, True)
    assert report.ok
    assert report.missing == []


@pytest.mark.parametrize(
    ("path", "value", "layer"),
    [
        (("secret",), "done", "mounts"),
        (("outside",), "done", "mounts"),
        (("root",), "done", "mounts"),
        (("sysctl",), "done", "mounts"),
        (("namespaces", "mnt"), "mnt:[1]", "mounts"),
        (("workspace",), "EACCES", "workspace"),
        (("signal",), "done", "processes"),
        (("namespaces", "pid"), "pid:[1]", "processes"),
        (("tcp",), "done", "network"),
        (("namespaces", "net"), "net:[1]", "network"),
        (("namespaces", "ipc"), "ipc:[1]", "ipc"),
        (("abstract",), "done", "sockets"),
        (("path-socket",), "done", "sockets"),
        (("userns",), "done", "user"),
        (("status", "CapBnd"), "0000000000000001", "capabilities"),
        (("status", "NoNewPrivs"), "0", "no-new-privileges"),
        (("status", "Seccomp"), "0", "seccomp"),
        (("io-uring",), "done", "seccomp"),
        (("walk",), "done", "landlock"),
        (("variables",), ["HOME", "AWS_SECRET"], "environment"),
        (("limits", "pids"), -1, "limits"),
        (("limits", "open-files"), 1024, "limits"),
        (("tmp",), 12 << 30, "limits"),
    ],
)
def test_each_way_out_costs_its_layer(path: tuple[str, ...], value: object, layer: str) -> None:
    seen = copy.deepcopy(HELD)
    place = seen
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    report = evaluate(Policy(), seen, OUTSIDE)
    assert [missing.layer for missing in report.missing] == [layer]
    assert report.ok is (layer not in REQUIRED)


def test_roots_credentials_cost_the_user_layer() -> None:
    assert evaluate(Policy(), HELD, replace(OUTSIDE, uid=0)).layers["user"] is False


def test_layers_that_the_policy_does_not_ask_for_are_not_judged() -> None:
    assert "network" not in evaluate(Policy(network="host"), {**HELD, "tcp": "done"}, OUTSIDE).layers
    assert "landlock" not in evaluate(Policy(read="host"), {**HELD, "walk": "done"}, OUTSIDE).layers


def test_a_read_only_session_that_can_write_its_directory_is_found_out() -> None:
    assert evaluate(Policy(profile="read-only"), HELD, OUTSIDE).layers["workspace"] is False


def test_missing_groups_are_told_and_do_not_forbid() -> None:
    report = evaluate(
        Policy(), HELD, replace(OUTSIDE, grouped=frozenset(), group_problem="/sys/fs/cgroup is not writable")
    )
    assert [missing.layer for missing in report.missing] == ["memory", "pids", "cpu"]
    assert report.missing[0].cause == "/sys/fs/cgroup is not writable"
    assert "Delegate=yes" in report.missing[0].fix
    assert report.ok
    assert not evaluate(Policy(), HELD, replace(OUTSIDE, grouped=frozenset()), (*REQUIRED, "memory")).ok


def test_a_file_system_that_cannot_map_owners_is_named() -> None:
    report = evaluate(
        Policy(), {**HELD, "workspace": "ENOENT"}, replace(OUTSIDE, late_error="mount_setattr: Invalid argument")
    )
    assert {missing.layer for missing in report.missing} == {"workspace", "late-workspace"}
    assert "cannot map owners" in report.text()


def test_a_canary_that_says_nonsense_is_no_proof() -> None:
    with pytest.raises(KeyError):
        evaluate(Policy(), {}, OUTSIDE)
    report = failed_report("it said nothing", "look at it")
    assert not report.ok
    assert report.text() == "sandbox: it said nothing (look at it)"


@pytest.mark.parametrize(
    ("expected", "host", "cause", "fix"),
    [
        ("bwrap: Unknown option --size", HostSettings(), "too old", "0.7"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            HostSettings(),
            "/proc is masked",
            "systempaths",
        ),
        (
            "bwrap: setting up uid map: Permission denied",
            HostSettings(apparmor_restricts=1),
            "AppArmor",
            "profile for bwrap",
        ),
        (
            "bwrap: No permissions to create new namespace",
            HostSettings(unprivileged_userns_clone=0),
            "are off",
            "unprivileged_userns_clone=1",
        ),
        ("bwrap: Creating new namespace failed", HostSettings(max_user_namespaces=0), "are off", "max_user_namespaces"),
        (
            "bwrap: No permissions to create new namespace",
            HostSettings(container="docker"),
            "docker container",
            "seccomp=unconfined",
        ),
        (
            "bwrap: Creating new namespace failed: nesting depth exceeded",
            HostSettings(),
            "forbidden here",
            "user namespaces",
        ),
        ("bwrap: execvp /x: No such file or directory", HostSettings(), "could not start", "message"),
        ("", HostSettings(), "no message", "message"),
    ],
)
def test_advice_fits_the_machine(expected: str, host: HostSettings, cause: str, fix: str) -> None:
    found = explain_failure(expected, host)
    assert cause in found[0]
    assert fix in found[1]
