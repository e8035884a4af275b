"""Files of `deploy/` agree with the code and with each other, and a stop as systemd does it drains."""

from __future__ import annotations

import configparser
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replwire.agents import AgentRules
from replwire.config import Config, load
from replwire.paths import ipc_path
from stub_broker import ROOT, TIMEOUT_S, command_environment

if TYPE_CHECKING:
    from conftest import Shell

DEPLOY = ROOT / "deploy"
# Each of them takes away something that bubblewrap makes a session's sandbox with.
AGAINST_THE_SANDBOX = {
    "RestrictNamespaces",
    "SystemCallFilter",
    "ProtectKernelTunables",
    "ProtectKernelLogs",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHostname",
    "PrivateUsers",
    "PrivateNetwork",
    "MemoryDenyWriteExecute",
    "InaccessiblePaths",
    "DynamicUser",
}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    """The unit's service section; of what stands twice, the last."""
    parser = configparser.ConfigParser(strict=False, delimiters="=", comment_prefixes="#", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text("replctl.service"))
    assert set(parser) == {"DEFAULT", "Unit", "Service", "Install"}
    return dict(parser["Service"])


@pytest.fixture(scope="module")
def config() -> Config:
    return load(text("replctl.toml"), "replctl.toml").config


def environment_in(name: str) -> dict[str, str]:
    """Return the environment variables of replctl that a file sets."""
    return dict(re.findall(r"\b(REPLCTL_[A-Z_]+)=([^\s\\]+)", text(name)))


def test_the_sample_config_is_one_of_a_host_with_several_agents(config: Config) -> None:
    assert len({agent.name for agent in config.agents}) >= 3
    assert AgentRules(config.agents).rule("nightly", "chat") != AgentRules(config.agents).rule("nightly", None)
    policy = config.sandbox.policy()
    assert (policy.profile, policy.workspaces, config.sandbox.allow_unsandboxed) == (
        "workspace-write",
        ["/srv/agents"],
        False,
    )


def test_the_unit_sets_nothing_that_the_sandbox_cannot_live_with(service: dict[str, str]) -> None:
    assert AGAINST_THE_SANDBOX & set(service) == set()
    named = text("replctl.service").partition("To be left out")[2]
    assert [option for option in AGAINST_THE_SANDBOX if option not in named] == []
    assert "AF_NETLINK" in service["RestrictAddressFamilies"].split()


def test_a_stop_has_time_for_the_grace(service: dict[str, str], config: Config) -> None:
    grace_s = max(config.limits.close_grace_ms, Config().limits.close_grace_ms) / 1000
    compose = re.search(r"stop_grace_period: (\d+)s", text("compose.yaml"))
    assert compose is not None
    assert service["KillMode"] == "mixed"
    assert min(int(service["TimeoutStopSec"].removesuffix("s")), int(compose[1])) >= 2 * grace_s


def test_the_unit_makes_the_directories_that_it_names_and_nobody_else_enters_them(service: dict[str, str]) -> None:
    env = environment_in("replctl.service")
    assert (service["StateDirectoryMode"], service["RuntimeDirectoryMode"]) == ("0700", "0700")
    assert env["REPLCTL_STATE_DIR"] == f"/var/lib/{service['StateDirectory']}"
    assert Path(str(ipc_path(env["REPLCTL_ENDPOINT"]))).parent == Path("/run", service["RuntimeDirectory"])
    assert (service["Delegate"], service["OOMPolicy"]) == ("yes", "continue")


def test_the_container_has_the_same_places_and_what_the_sandbox_needs(service: dict[str, str]) -> None:
    image, unit, compose = environment_in("Dockerfile"), environment_in("replctl.service"), text("compose.yaml")
    assert {name: image[name] for name in unit} == unit
    assert image["REPLCTL_CONFIG"] in service["ExecStart"].split()
    for option in ("seccomp", "apparmor", "systempaths"):
        assert f"- {option}=unconfined" in compose
    assert re.search(r"/run/replctl:mode=0700,uid=10001,gid=10001$", compose, re.M)
    assert "useradd --uid 10001" in text("Dockerfile")


@pytest.mark.needs_program("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(short: Path) -> None:
    unit = short / "replctl.service"
    unit.write_text(text("replctl.service").replace("/opt/replctl/bin/replctl", sys.executable))
    listener = short / "replctl.socket"
    listener.write_text(text("replctl.socket"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit), str(listener)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_stop_as_systemd_does_it_drains_tells_who_waits_and_leaves_nothing(
    alone: Shell, short: Path, service: dict[str, str]
) -> None:
    command = service["ExecStart"].replace("/etc/replctl/replctl.toml", str(DEPLOY / "replctl.toml")).split()
    broker = alone.start(*command[1:], "--json", "--set", "limits.max-concurrent-evals=1")
    assert broker.stdout is not None
    assert json.loads(broker.stdout.readline())["pid"] == broker.pid
    alone.run("new", "first")
    alone.run("new", "second")
    running = alone.start("eval", "--json", "-s", "first", "int(input())")
    while "running" not in alone.run("jobs", "first").stdout:
        assert running.poll() is None
    queued = alone.start("eval", "--json", "-s", "second", "8")
    while "queued" not in alone.run("jobs", "second").stdout:
        assert queued.poll() is None
    broker.send_signal(getattr(signal, service["KillSignal"]))
    result = json.loads(queued.communicate(timeout=TIMEOUT_S)[0])
    alone.run("stdin", "first", "7")
    ended = json.loads(running.communicate(timeout=TIMEOUT_S)[0])
    assert (result["code"], result["value"]) == ("shutdown", None)
    assert (ended["value"], ended["code"]) == ("7", None)
    assert broker.wait(TIMEOUT_S) == 0
    assert sorted(path.name for path in (short / "run").iterdir()) == ["broker.sock.lock"]
    (session_list,) = short.glob("sessions-*.ndjson")
    assert session_list.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_was_passed_is_listened_at_and_stays_when_the_broker_ends(alone: Shell, short: Path) -> None:
    """As systemd does it: descriptor 3 listens already, and the process that runs is told so by its pid."""
    path = short / "door.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        pass_on = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"
        broker = subprocess.Popen(
            [sys.executable, "-c", pass_on, str(listener.fileno()), sys.executable, "-m", "replctl", "serve", "--json"],
            env=command_environment(alone.state, LISTEN_FDS="1"),
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert broker.stdout is not None
        with broker, broker.stdout:
            try:
                result = json.loads(broker.stdout.readline())
                assert result["listening"][-1] == f"ipc://{path}"
                for _ in range(2):
                    assert alone.run("eval", "--endpoint", f"ipc://{path}", "--no-start", "6*7").stdout == "42\n"
            finally:
                broker.send_signal(signal.SIGINT)
            assert broker.wait(TIMEOUT_S) == 0
    assert path.is_socket()
