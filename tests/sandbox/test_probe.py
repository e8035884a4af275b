"""The probe promises what it has observed, and says what is missing and what would mend it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replwire.policy import Network, Policy, Profile, Read
from replworker.sandbox import probe as probes
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.report import LAYERS, REQUIRED, SandboxReport
from sandbox_kit import starts

ENV = {"PATH": "/usr/bin:/bin"}


def probed(machine: Machine, **fields: object) -> SandboxReport:
    return probes.probe(Policy(**fields), machine, sys.executable, ENV)  # type: ignore[arg-type]


def test_all_required_layers_are_observed_here(report: SandboxReport) -> None:
    assert report.ok
    assert report.text() == ""
    assert all(report.layers[layer] for layer in REQUIRED)
    assert set(report.layers) == set(LAYERS)


@pytest.mark.parametrize("profile", ["read-only", "workspace-write"])
@pytest.mark.parametrize("network", ["none", "list", "host"])
@pytest.mark.parametrize("read", ["minimal", "host"])
def test_each_policy_can_be_kept(
    report: SandboxReport, machine: Machine, profile: Profile, network: Network, read: Read
) -> None:
    del report
    found = probed(machine, profile=profile, network=network, read=read)
    assert found.ok, found.text()
    assert ("network" in found.layers) is (network != "host")


@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_a_broker_that_keeps_its_files_to_itself_can_sandbox_as_well(
    report: SandboxReport, machine: Machine, mask: int
) -> None:
    del report
    before = os.umask(mask)
    try:
        found = probed(machine)
    finally:
        os.umask(before)
    assert found.ok, found.text()


def test_a_layer_that_was_asked_for_and_is_missing_makes_the_sandbox_unavailable(
    report: SandboxReport, machine: Machine
) -> None:
    del report
    without = replace(machine, landlock_abi=0)
    assert probed(without).ok
    strict = probes.probe(Policy(), without, sys.executable, ENV, required=(*REQUIRED, "landlock"))
    assert not strict.ok
    assert strict.text().startswith("landlock: the kernel has no Landlock (Linux 5.13 or later")


def test_no_bubblewrap_says_what_to_install() -> None:
    found = probed(detect_machine("/nowhere/bwrap"))
    assert not found.ok
    assert found.text() == (
        "sandbox: bubblewrap: there is no /nowhere/bwrap (install it: apt-get install bubblewrap, dnf install bubblewrap)"
    )


def test_a_path_of_the_policy_that_does_not_exist_is_named(report: SandboxReport) -> None:
    assert report.ok
    found = probes.probe(Policy(writable_paths=["/nowhere/data"]), detect_machine(), sys.executable, {})
    assert found.text() == (
        "sandbox: /nowhere/data, which is granted to sessions, does not exist (create it or correct the setting)"
    )


@pytest.fixture
def script() -> Iterator[Callable[[str], str]]:
    """A program in the place of bubblewrap, where a root broker's sessions can reach it."""
    with tempfile.TemporaryDirectory(prefix="fake-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)

        def write(text: str) -> str:
            path = Path(directory, "bwrap")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
            return str(path)

        yield write


Script = Callable[[str], str]


def test_a_bubblewrap_that_others_may_change_is_not_used(script: Script) -> None:
    fake = script("echo bubblewrap 0.8.0")
    os.chmod(fake, 0o777)
    assert "is writable by other users" in probed(detect_machine(fake)).text()


def test_a_bubblewrap_that_does_nothing_is_found_out(report: SandboxReport, machine: Machine, script: Script) -> None:
    """Such a bubblewrap drops its options and runs the command: everything works, nothing is sandboxed."""
    del report
    fake = script('while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    found = probed(replace(machine, bwrap=fake))
    assert not found.ok
    lacking = {missing.layer for missing in found.missing_required}
    assert lacking >= {"mounts", "processes", "network", "ipc", "sockets", "seccomp"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("echo 'bwrap: Unknown option --size' >&2; exit 1", "bubblewrap is too old"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "forbid"),
        ("exit 3", "bubblewrap could not start: no message"),
    ],
)
def test_a_bubblewrap_that_cannot_start_says_why(
    report: SandboxReport, machine: Machine, script: Script, text: str, cause: str
) -> None:
    del report
    found = probed(replace(machine, bwrap=script(text)))
    assert not found.ok
    assert cause in found.text()


NESTED = """
import sys
from replwire.policy import Policy
from replworker.sandbox.machine import detect_machine
from replworker.sandbox.probe import probe
print(probe(Policy(), detect_machine(), sys.executable, {}).text())
"""


def test_where_namespaces_are_denied_the_probe_says_so(report: SandboxReport, machine: Machine) -> None:
    """For real: inside a sandbox that allows no further one."""
    del report
    assert machine.bwrap is not None
    done = subprocess.run(
        [
            machine.bwrap,
            "--unshare-user",
            "--disable-userns",
            "--uid",
            "4242",
            "--gid",
            "4242",
            "--dev-bind",
            "/",
            "/",
            "--",
            sys.executable,
            "-c",
            NESTED,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    assert "namespace" in done.stdout


def test_an_interpreter_that_does_not_exist_is_named(machine: Machine) -> None:
    found = probes.probe(Policy(), machine, "/nowhere/python3", ENV)
    assert not found.ok
    assert "/nowhere/python3: no such file" in found.text()


@pytest.mark.parametrize(
    ("runtime", "argv"), [("bash", ["/bin/bash", "--version"]), ("node", ["/usr/bin/node", "--version"])]
)
def test_other_runtimes_start(report: SandboxReport, machine: Machine, runtime: str, argv: list[str]) -> None:
    del report
    assert starts(prepare_plan(Policy(), machine, runtime, argv[0], ENV), argv) is None


def test_a_runtime_that_does_not_start_says_why(report: SandboxReport, machine: Machine) -> None:
    del report
    result = starts(
        prepare_plan(Policy(), machine, "bash", "/bin/bash", ENV), ["/bin/bash", "-c", "echo no luck >&2; exit 4"]
    )
    assert result is not None
    assert "code 4" in result
    assert "no luck" in result


def test_nothing_is_left_of_a_probe(report: SandboxReport, machine: Machine, tmp_path: Path) -> None:
    del report
    before = set(os.listdir("/proc/self/fd"))
    assert probes.probe(Policy(), machine, sys.executable, ENV, scratch=str(tmp_path)).ok
    assert set(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
    assert all(
        not list(Path(directory).glob(f"replctl-{os.getpid()}-*")) for directory in machine.cgroups.directories.values()
    )
