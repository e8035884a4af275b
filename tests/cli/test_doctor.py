"""The doctor: what it says of a machine where something is wrong, and that it changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replctl.doctor import host, sandbox
from replctl.doctor.broker import find_orphan_brokers, lock_holder
from replctl.doctor.finding import Finding
from replwire.config import Config, SandboxSection
from replworker.sandbox.cgroup import CgroupRoot
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.report import LAYERS, HostSettings, MissingLayer, SandboxReport, failed_report
from stub_broker import TIMEOUT_S, Script, StubBroker

if TYPE_CHECKING:
    from conftest import Shell

ALL_HOLD = SandboxReport(dict.fromkeys(LAYERS, True))


def checks(shell: Shell, *args: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings. Doctor looks at every broker of this user: other tests clear the directories of theirs."""
    ran = shell.run("doctor", "--json", *args, **env)
    assert "Traceback" not in ran.stderr
    found = json.loads(ran.stdout)["checks"]
    return ran.returncode, [each for each in found if not _is_strange(each["seen"], str(shell.state))]


def _is_strange(seen: str, state: str) -> bool:
    return "whose directory was cleared" in seen and state not in seen


def bad(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The one finding of this name that is not ok; it says cause and mend."""
    [each] = [check for check in found if check["name"] == name and check["level"] != "ok"]
    assert each["cause"]
    assert each["fix"]
    return each


def good(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [each] = [check for check in found if check["name"] == name]
    assert (each["level"], each["cause"], each["fix"]) == ("ok", None, None)
    return each


@pytest.fixture
def state(short: Path) -> Path:
    """The state directory of the commands, with the one for sockets in it."""
    (short / "run").mkdir(mode=0o700)
    return short


@pytest.fixture(scope="module")
def machine() -> Machine:
    return detect_machine()


def test_every_part_is_looked_at_and_nothing_is_changed(shell: Shell, state: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in [state, *state.rglob("*")]}
    _, found = checks(shell)
    names = {
        "python",
        "libzmq",
        "machine",
        "config",
        "runtimes",
        "sandbox",
        "state",
        "sockets",
        "broker",
        "disk",
        "clock",
    }
    assert names <= {check["name"] for check in found}
    assert {path: path.lstat().st_mtime_ns for path in [state, *state.rglob("*")]} == before


def test_people_get_a_line_for_each_check_and_cause_and_mend_below(shell: Shell, state: Path) -> None:
    state.chmod(0o755)
    ran = shell.run("doctor")
    lines = ran.stdout.splitlines()
    at = lines.index(f"FAIL  state: {state} has mode 0755")
    assert lines[at + 1].strip().startswith("cause: others may enter it")
    assert lines[at + 2].strip().startswith(f"fix: chmod 700 {state} if only replctl uses it")
    assert (ran.returncode, "failed" in lines[-1]) == (1, True)


def test_a_directory_that_others_may_write_to_fails(shell: Shell, state: Path) -> None:
    (state / "run").chmod(0o777)
    code, found = checks(shell)
    assert (code, bad(found, "sockets")["level"]) == (1, "fail")
    assert "others may write" in bad(found, "sockets")["seen"]


def test_an_unknown_setting_fails_and_is_named(shell: Shell, state: Path) -> None:
    (state / "c.toml").write_text("[limits]\nmax-sesions = 5\n")
    code, found = checks(shell, "--config", str(state / "c.toml"))
    assert (code, "limits.max-sesions" in bad(found, "config")["seen"]) == (1, True)
    assert good(found, "python")


def test_a_config_file_that_others_may_write_fails(shell: Shell, state: Path) -> None:
    (state / "c.toml").write_text("")
    (state / "c.toml").chmod(0o666)
    code, found = checks(shell, REPLCTL_CONFIG=str(state / "c.toml"))
    assert (code, "0666" in bad(found, "config")["seen"]) == (1, True)


def test_a_directory_that_is_named_and_not_there_is_told(shell: Shell, state: Path) -> None:
    (state / "c.toml").write_text(f'[sandbox]\nworkspaces = ["{state}/none"]\n')
    _, found = checks(shell, "--config", str(state / "c.toml"))
    warned = [check for check in found if check["name"] == "config" and check["level"] == "warn"]
    assert [f"{state}/none" in check["seen"] for check in warned] == [True]


def test_an_interpreter_that_is_not_there_fails(shell: Shell) -> None:
    code, found = checks(shell, REPLCTL_NODE_INTERPRETER="/none/node")
    failed = [check for check in found if check["name"] == "runtimes" and check["level"] == "fail"]
    assert (code, [check["seen"] for check in failed]) == (1, ["node.interpreter is /none/node"])


@pytest.mark.parametrize(("allow", "level"), [("true", "warn"), ("false", "fail")])
def test_a_sandbox_that_is_off_is_told(shell: Shell, state: Path, allow: str, level: str) -> None:
    (state / "c.toml").write_text(f'[sandbox]\nprofile = "off"\nallow-unsandboxed = {allow}\n')
    code, found = checks(shell, "--config", str(state / "c.toml"))
    assert (code == 1, bad(found, "sandbox")["level"]) == (level == "fail", level)


@pytest.mark.parametrize(
    ("endpoint", "part"),
    [("udp://x", "not an endpoint"), ("tcp://0.0.0.0:1", "no keys"), ("ipc://" + "x" * 120, "longer than")],
)
def test_an_endpoint_that_no_broker_would_take_fails(shell: Shell, endpoint: str, part: str) -> None:
    code, found = checks(shell, "--endpoint", endpoint)
    assert (code, [part in check["seen"] for check in found if check["name"] == "sockets"]) == (1, [True])


def test_a_socket_that_a_killed_broker_left_is_told(shell: Shell, state: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(state / "run" / "broker.sock"))
    left.close()
    lines = [{"version": 1, "pid": 2**22 + 1, "floor": 0}]
    lines += [
        {"owner": "uid:0", "name": name, "id": name, "epoch": 1, "open": open}
        for name, open in (("work", True), ("gone", True), ("gone", False))
    ]
    (state / "sessions-0.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, found = checks(shell)
    warned = bad(found, "broker")
    assert (warned["level"], warned["seen"].endswith("sessions lost: work")) == ("warn", True)
    assert (state / "run" / "broker.sock").exists()


def test_sessions_that_wait_for_a_broker_are_listed_apart_from_lost_ones(shell: Shell, state: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lines = [{"version": 2, "pid": 2**22 + 1, "floor": 0}]
    for worker, name, begun in ((1, "kept", start), (2, "dead", start - 1)):
        details = {"spec": {"runtime": "python"}, "worker": worker}
        session = {"owner": "uid:0", "name": name, "id": name, "epoch": 1, "open": True, "details": details}
        handle = json.dumps({"pid": os.getpid(), "start": begun, "boot": boot})
        lines += [{"type": "session", **session}, {"type": "worker", "worker": worker, "handle": handle}]
    texts = [json.dumps(line) for line in lines]
    (state / "sessions-0.ndjson").write_text("".join(f"{zlib.crc32(text.encode()):08x} {text}\n" for text in texts))
    _, found = checks(shell)
    warned = bad(found, "broker")
    assert "sessions that wait for a broker: kept; sessions lost: dead" in warned["seen"]
    assert f"pids {os.getpid()}" in warned["cause"]


def test_a_file_in_the_sockets_place_fails(shell: Shell, state: Path) -> None:
    (state / "run" / "broker.sock").write_text("")
    code, found = checks(shell)
    assert (code, "is not a socket" in bad(found, "sockets")["seen"]) == (1, True)


def test_whoever_listens_and_says_nothing_is_given_up(shell: Shell, state: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(state / "run" / "broker.sock"))
        mute.listen()
        code, found = checks(shell)
    assert (code, "does not reply" in bad(found, "broker")["seen"]) == (1, True)


@pytest.mark.parametrize(
    ("versions", "level"),
    [({"replctl": "0.0.1", "protocol": "1"}, "warn"), ({"replctl": "9.0", "protocol": "2"}, "fail")],
)
def test_a_broker_of_another_version_is_told(
    shell: Shell, stub: Callable[[Script], StubBroker], versions: dict[str, str], level: str
) -> None:
    endpoint = stub(lambda _, say: say(status=["done"], versions=versions)).endpoint
    _, found = checks(shell, "--endpoint", endpoint)
    assert bad(found, "broker")["level"] == level
    assert versions["replctl"] in bad(found, "broker")["seen"]


def test_a_broker_that_does_not_let_us_in_is_told(shell: Shell, stub: Callable[[Script], StubBroker]) -> None:
    endpoint = stub(lambda _, say: say(status=["done", "error", "forbidden"], err="not you")).endpoint
    _, found = checks(shell, "--endpoint", endpoint)
    assert bad(found, "broker")["cause"] == "not you"


def test_a_live_broker_is_well_and_one_that_stands_still_while_its_directory_is_cleared_is_found(
    alone: Shell, short: Path
) -> None:
    process = alone.start("serve", "--json")
    assert process.stdout is not None
    pid = json.loads(process.stdout.readline())["pid"]
    _, found = checks(alone)
    assert f"(pid {pid})" in good(found, "broker")["seen"]
    assert lock_holder(str(short / "run" / "broker.sock.lock")) == pid
    process.send_signal(signal.SIGSTOP)  # else it makes its sockets anew
    for path in (short / "run").iterdir():
        path.unlink()
    lost = [check for check in checks(alone)[1] if check["fix"] == f"kill {pid}"]
    process.send_signal(signal.SIGCONT)
    assert ["can no longer be reached" in check["cause"] for check in lost] == [True]
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    assert [each for each in find_orphan_brokers(os.getuid()) if each.fix == f"kill {pid}"] == []


def test_a_lock_that_is_held_without_a_listener_is_told(shell: Shell, state: Path) -> None:
    import fcntl

    with (state / "run" / "broker.sock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, found = checks(shell)
    assert f"pid {os.getpid()} holds" in bad(found, "broker")["seen"]


def test_no_bubblewrap_fails_and_says_how_to_get_it(machine: Machine) -> None:
    none = dataclasses.replace(machine, bwrap=None, bwrap_version=(), bwrap_problem="there is no /usr/bin/bwrap")
    found = list(
        sandbox.check_layers(none, failed_report("there is no /usr/bin/bwrap", "install it"), HostSettings(), "fail")
    )
    assert {each.name: each.level for each in found if each.name in ("bubblewrap", "sandbox")} == {
        "bubblewrap": "fail",
        "sandbox": "fail",
    }
    assert "apt-get install bubblewrap" in str(found[0].fix)


def test_namespaces_that_are_off_fail_with_the_setting(machine: Machine) -> None:
    none = dataclasses.replace(machine, bwrap=None)
    report = failed_report("there is none", "install it")
    assert sandbox.namespaces(none, report, HostSettings(max_user_namespaces=0), "fail").fix == (
        "sysctl user.max_user_namespaces=10000"
    )
    there = dataclasses.replace(machine, bwrap="/usr/bin/bwrap")
    report = failed_report("AppArmor strips user namespaces", "load a profile")
    found = sandbox.namespaces(there, report, HostSettings(), "fail")
    assert (found.level, found.cause, found.fix) == ("fail", "AppArmor strips user namespaces", "load a profile")


def test_what_is_not_required_is_warned_of(machine: Machine) -> None:
    bare = dataclasses.replace(machine, landlock_abi=0, cgroups=CgroupRoot(problem="no cgroup controllers are mounted"))
    lost = ("landlock", "memory", "pids", "cpu")
    report = SandboxReport(
        ALL_HOLD.layers | dict.fromkeys(lost, False), [MissingLayer(name, "none", "mend") for name in lost]
    )
    found = {each.name: each for each in sandbox.check_layers(bare, report, HostSettings(), "fail")}
    levels = {name: each.level for name, each in found.items()}
    assert (levels["landlock"], levels["cgroups"], levels["sandbox"]) == ("warn", "warn", "ok")
    assert "Delegate=yes" in str(found["cgroups"].fix)


def test_an_allowed_lack_of_the_sandbox_is_no_failure(machine: Machine) -> None:
    found = sandbox.layers(failed_report("namespaces are forbidden", "allow them"), "warn")
    assert (found.level, "without a sandbox" in str(found.cause)) == ("warn", True)
    assert [each.level for each in sandbox.check_layers(machine, ALL_HOLD, HostSettings(), "fail")][-1] == "ok"


def test_the_switch_for_no_sandbox_is_warned_of_while_the_sandbox_holds(short: Path) -> None:
    found = sandbox.sandbox(SandboxSection(allow_unsandboxed=True), str(short), {})
    assert found[-1].seen == "allow-unsandboxed is true"


def test_an_old_python_and_another_system_fail() -> None:
    levels = [next(iter(host.python(*args))).level for args in [((3, 10, 1), "linux"), ((3, 12, 0), "darwin")]]
    assert levels == ["fail", "fail"]
    assert next(iter(host.python(sys.version_info[:3], "linux"))).level == "ok"


def test_a_full_disk_fails_and_a_small_one_is_warned_of(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finding(free: int, files: int = 10_000) -> Finding:
        fields = (4096, 4096, 10**9, free // 4096, free // 4096, 10**6, files, files, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
        return next(iter(host.disk(Config(), str(short / "not" / "yet"), str(short))))

    levels = [finding(1 << 20).level, finding(1 << 40, files=0).level, finding(64 << 20).level, finding(1 << 40).level]
    assert levels == ["fail", "fail", "warn", "ok"]


def test_a_clock_that_went_back_is_told(short: Path) -> None:
    now = time.time()
    (short / "audit.ndjson").touch()
    assert [each.level for each in host.clock(str(short), now, synchronised=True)] == ["ok"]
    assert [each.level for each in host.clock(str(short), now, synchronised=False)] == ["warn"]
    [late] = host.clock(str(short), now - 86_400 * 365 * 20, synchronised=True)
    assert (late.level, "has a later time" in str(late.cause)) == ("warn", True)
