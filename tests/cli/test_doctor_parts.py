"""The doctor's single checks, each in the state that it is there for."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from replctl.doctor import broker, checks, host, network, sandbox, settings, sockets
from replctl.doctor.finding import Finding
from replwire.config import Config, SandboxSection
from replwire.identities import Identity
from replwire.secret_entries import SecretEntry
from replworker.sandbox.machine import detect_machine
from replworker.sandbox.report import LAYERS, HostSettings, MissingLayer, SandboxReport, failed_report
from stub_broker import command_environment

if TYPE_CHECKING:
    from conftest import Shell


def one(found: Iterable[Finding]) -> Finding:
    """The one thing that is not well; it says why, and what mends it."""
    [bad] = [each for each in found if each.level != "ok"]
    assert bad.cause
    assert bad.fix
    return bad


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.metadata, "requires", lambda _: ["pyzmq>=25", "no-such-package", "tui ; extra == 'tui'"])
    bad = one(host.python())
    assert (bad.level, bad.cause) == ("fail", "missing or incomplete: no-such-package")
    assert "pip install" in str(bad.fix)


def test_a_replctl_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise host.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(host.metadata, "requires", requires)
    assert "replctl" in str(one(host.python()).cause)


@pytest.mark.parametrize(
    ("version", "has", "level", "part"),
    [
        ((4, 1, 8), {"ipc", "curve"}, "fail", "4.2"),
        ((4, 3, 5), {"curve"}, "fail", "user's own socket"),
        ((4, 3, 5), {"ipc"}, "warn", "keys"),
    ],
)
def test_a_libzmq_that_lacks_something_is_told(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], has: set[str], level: str, part: str
) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: version)
    monkeypatch.setattr(zmq, "has", lambda name: name in has)
    bad = one(host.libzmq())
    assert (bad.level, part in str(bad.cause)) == (level, True)


def test_a_libzmq_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    bad = one(host.libzmq())
    assert (bad.level, bad.seen) == ("fail", "cannot be loaded")
    assert "pyzmq" in str(bad.fix)


@pytest.mark.needs_root("to hide bubblewrap takes root")
def test_the_command_says_what_a_machine_without_bubblewrap_needs(shell: Shell) -> None:
    script = 'mount --bind /dev/null /usr/bin/bwrap && exec "$@"'
    ran = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            sys.executable,
            "-m",
            "replctl",
            "doctor",
            "--json",
        ],
        capture_output=True,
        timeout=30,
        env=command_environment(shell.state),
        check=False,
    )
    found = {each["name"]: each for each in json.loads(ran.stdout)["checks"]}
    assert ran.returncode == 1
    assert (found["bubblewrap"]["level"], found["namespaces"]["level"]) == ("fail", "warn")
    assert "apt-get install bubblewrap" in found["bubblewrap"]["fix"]
    assert (found["sandbox"]["level"], found["sandbox"]["cause"]) == ("fail", "no session can be opened")


def test_a_bubblewrap_that_is_too_old_is_told() -> None:
    old = dataclasses.replace(detect_machine(), bwrap=None, bwrap_problem="/usr/bin/bwrap is 0.4.1, and 0.7 is needed")
    bad = sandbox.bubblewrap(old, "fail")
    assert (bad.level, "0.4.1" in bad.seen, "0.7 or later" in str(bad.fix)) == ("fail", True, True)


@pytest.mark.parametrize(("setting", "value"), [("max_user_namespaces", "10000"), ("unprivileged_userns_clone", "1")])
def test_namespaces_that_a_setting_forbids_name_the_setting(setting: str, value: str) -> None:
    none = dataclasses.replace(detect_machine(), bwrap=None)
    bad = sandbox.namespaces(none, failed_report("there is none", "install it"), HostSettings(**{setting: 0}), "fail")
    assert (bad.level, bad.fix) == ("fail", f"sysctl {bad.seen.split()[0]}={value}")
    assert setting in bad.seen


def test_a_masked_proc_names_the_settings_of_a_unit() -> None:
    there = dataclasses.replace(detect_machine(), bwrap="/usr/bin/bwrap")
    bad = sandbox.namespaces(there, failed_report("/proc is masked", "unmask it"), HostSettings(), "fail")
    assert (bad.level, bad.fix) == ("fail", f"unmask it; {sandbox._IN_UNIT}")


def test_a_landlock_that_does_not_hold_is_told() -> None:
    there = dataclasses.replace(detect_machine(), landlock_abi=1)
    bad = sandbox.landlock(there, SandboxReport(dict.fromkeys(LAYERS, True) | {"landlock": False}))
    assert (bad.level, bad.seen) == ("warn", "version 1")


def test_a_workspace_that_cannot_come_late_is_told() -> None:
    gap = MissingLayer("late-workspace", "mount_setattr: Invalid argument", "use another file system")
    bad = sandbox.layers(SandboxReport(dict.fromkeys(LAYERS, True) | {"late-workspace": False}, [gap]), "fail")
    assert (bad.level, bad.fix) == ("warn", "use another file system")
    assert "start without a warm worker" in str(bad.cause)


def test_a_layer_that_was_not_observed_fails() -> None:
    gap = MissingLayer("seccomp", "the canary could set up io_uring", "see the kernel's log")
    bad = sandbox.layers(SandboxReport(dict.fromkeys(LAYERS, True) | {"seccomp": False}, [gap]), "fail")
    assert (bad.level, bad.cause, bad.fix) == ("fail", "no session can be opened", "see the kernel's log")


def test_a_profile_that_is_off_is_told(short: Path) -> None:
    [bad] = sandbox.sandbox(SandboxSection(profile="off"), str(short), {})
    assert (bad.level, "no session can be opened" in str(bad.cause)) == ("fail", True)


def test_a_config_file_that_cannot_be_read_fails(shell: Shell) -> None:
    (shell.state / "c.toml").write_bytes(b"\xff\xfe")
    found = json.loads(shell.run("doctor", "--json", "--config", str(shell.state / "c.toml")).stdout)["checks"]
    [bad] = [each for each in found if each["name"] == "config"]
    assert (bad["level"], "cannot read" in bad["seen"]) == ("fail", True)


def test_runtimes_that_are_missing_are_told() -> None:
    assert [each.seen for each in settings.interpreters(Config(), "/nowhere")] == ["python, no node or bash"]


def test_a_directory_that_cannot_be_written_fails(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    bad = one(host.disk(Config(), str(short), str(short)))
    assert (bad.level, bad.seen) == ("fail", f"{short} is not writable")


def test_secrets_that_others_may_read_are_told(short: Path) -> None:
    (short / "keys").mkdir()
    for name in ("keys/server.toml", "audit.ndjson", "history"):
        (short / name).write_text("")
        (short / name).chmod(0o600)
    assert list(sockets.secrets(str(short))) == []
    (short / "audit.ndjson").chmod(0o644)
    bad = one(sockets.secrets(str(short)))
    assert (bad.level, bad.fix) == ("warn", f"chmod 600 {short}/audit.ndjson")


def test_a_key_file_that_cannot_be_used_fails(short: Path) -> None:
    (short / "keys").mkdir()
    (short / "keys/server.toml").write_text("nonsense")
    (short / "keys/server.toml").chmod(0o600)
    bad = one(sockets.listener("tcp://0.0.0.0:5556", str(short), os.getuid()))
    assert (bad.level, bad.seen) == ("fail", f"{short}/keys/server.toml: not a key file")


def test_an_abstract_socket_is_warned_of(short: Path) -> None:
    bad = one(sockets.listener("ipc://@anybody", str(short), os.getuid()))
    assert (bad.level, "any user" in str(bad.cause)) == ("warn", True)


def test_a_socket_of_somebody_else_is_told(short: Path) -> None:
    short.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(short / "b.sock"))
        found = list(sockets.listener(f"ipc://{short}/b.sock", str(short), os.getuid() + 1))
    assert {each.level for each in found} & {"fail", "warn"}
    assert any(f"uid {os.getuid()}" in each.seen for each in found)


def test_a_services_socket_in_a_directory_that_others_may_enter_is_well_while_one_listens(short: Path) -> None:
    short.chmod(0o755)
    endpoint = f"ipc://{short}/b.sock"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(short / "b.sock"))
        service.listen()
        [well] = sockets.listener(endpoint, str(short), os.getuid())
    assert (well.level, "shared" in well.seen) == ("ok", True)
    bad = one(sockets.listener(endpoint, str(short), os.getuid()))
    assert bad.level == "fail"
    assert "if only replctl uses it" in str(bad.fix)  # nobody is to be told to close /run


def test_a_start_that_hangs_is_told(short: Path) -> None:
    import fcntl

    (short / "run").mkdir(mode=0o700)
    with (short / "run/b.sock.start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bad = next(iter(broker.broker(f"ipc://{short}/run/b.sock", str(short))))
    assert (bad.level, bad.seen) == ("warn", f"pid {os.getpid()} is starting a broker")


def test_a_check_that_cannot_be_made_is_a_finding() -> None:
    def check() -> list[Finding]:
        raise OSError(errno.EACCES, "Permission denied", "/somewhere")

    [bad] = checks._run_check("state", check)
    assert (bad.level, bad.cause) == ("fail", "the check failed")


def test_an_identity_without_its_user_or_directory_is_told(short: Path) -> None:
    listed = [Identity(name="ada", user="nobody-of-this-name", workspaces=[f"{short}/none", str(short)])]
    found = [each.seen for each in settings._check_paths(Config(identities=listed))]
    assert found == ["identities: ada: user nobody-of-this-name", f"identities: ada: workspaces names {short}/none"]


def test_a_limit_on_open_files_that_is_too_low_is_told_with_what_it_is_enough_for() -> None:
    assert [each.level for each in host.descriptors(Config(), 1024)] == ["ok"]
    tight = one(host.descriptors(Config(), 400))
    assert (tight.level, "sessions" in str(tight.cause), "ulimit" in str(tight.fix)) == ("warn", True, True)
    assert one(host.descriptors(Config(), 100)).level == "fail"


def test_a_list_without_hosts_and_secrets_that_cannot_be_read_are_named(short: Path) -> None:
    assert [each.seen for each in network.network(SandboxSection(), [], {})] == ["none"]
    [empty] = network.network(SandboxSection(network="list"), [], {})
    assert (empty.level, empty.fix) == ("warn", "name hosts in sandbox.allowed-hosts")
    secrets = [
        SecretEntry(name="GOOD", hosts=["a.test"], env="GOOD"),
        SecretEntry(name="BAD", hosts=["a.test"], file=f"{short}/none"),
    ]
    some = SandboxSection(network="list", allowed_hosts=["a.test", "b.test", "c.test", "d.test"])
    listed, bad, good = network.network(some, secrets, {"GOOD": "value-of-it"})
    assert (listed.level, listed.seen) == ("ok", "list: a.test, b.test, c.test and 1 more")
    assert (bad.name, bad.seen) == ("secret BAD", f"{short}/none: No such file or directory")
    assert (good.level, good.seen) == ("ok", "GOOD: readable")
    assert "value-of-it" not in str([listed, bad, good])
    _, useless = network.network(SandboxSection(), secrets, {})
    assert (useless.level, useless.fix) == ("warn", 'set sandbox.network = "list"')
