"""`replctl service`: units as systemd reads them, and the calls of systemctl; a stub stands for systemctl."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replctl.commands.service_units import system_socket, system_unit, user_unit
from stub_broker import ROOT

if TYPE_CHECKING:
    from conftest import Shell


def parse(unit: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(strict=False, delimiters="=", comment_prefixes="#", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_a_users_unit_ends_and_reloads_the_broker_as_the_machines_does() -> None:
    unit = parse(user_unit("/opt/a b/replctl", None, {"REPLCTL_STATE_DIR": "/x%y"}))
    ours, machine = unit["Service"], parse(system_unit("/opt/r", None))["Service"]
    for key in (
        "KillMode",
        "KillSignal",
        "TimeoutStopSec",
        "Restart",
        "RestartPreventExitStatus",
        "Delegate",
        "OOMPolicy",
        "UMask",
        "ExecReload",
    ):
        assert ours[key] == machine[key], key
    assert ours["ExecStart"] == '"/opt/a b/replctl" serve'
    assert ours["Environment"] == '"REPLCTL_STATE_DIR=/x%%y"'
    assert unit["Install"] == {"WantedBy": "default.target"}


def test_the_machines_units_are_those_of_deploy_with_the_paths_of_this_installation() -> None:
    unit = (ROOT / "deploy/replctl.service").read_text()
    assert system_unit("/opt/replctl/bin/replctl", None) == unit
    assert "ExecStart=/usr/bin/replctl serve --config /etc/r.toml" in system_unit("/usr/bin/replctl", "/etc/r.toml")
    assert system_socket() == (ROOT / "deploy/replctl.socket").read_text()


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A directory for the PATH with a systemctl that writes down how it is called."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$2" != "$FAILING" ]\n')
    program.chmod(0o755)
    return directory


def test_it_is_written_enabled_checked_and_removed(live: Shell, fake: Path, tmp_path: Path) -> None:
    live.run("ls")  # the broker that the unit would start
    env = {"PATH": f"{fake}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    unit = tmp_path / "config/systemd/user/replctl.service"

    dry = live.run("service", "install", "--dry-run", **env)
    assert ("systemctl --user enable --now replctl.service" in dry.stdout, unit.exists()) == (True, False)
    done = live.run("service", "install", **env)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"its broker listens at ipc://{live.state}/run/broker.sock" in done.stderr
    assert f"Environment=REPLCTL_STATE_DIR={live.state}\n" in unit.read_text()
    assert parse(unit.read_text())["Service"]["ExecStart"] == f"{Path(sys.executable).parent}/replctl serve"
    assert (tmp_path / "calls").read_text() == "--user daemon-reload\n--user enable --now replctl.service\n"

    assert live.run("service", "remove", **env).returncode == 0
    assert not unit.exists()
    assert live.run("service", "remove", **env).returncode == 4


def test_a_systemctl_that_fails_is_reported(shell: Shell, fake: Path, tmp_path: Path) -> None:
    env = {"PATH": f"{fake}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path / "config"), "FAILING": "enable"}
    failed = shell.run("service", "install", **env)
    assert (failed.returncode, "enable --now replctl.service failed" in failed.stderr) == (1, True)
    (fake / "systemctl").unlink()
    absent = shell.run("service", "install", PATH=str(fake), XDG_CONFIG_HOME=str(tmp_path))
    assert (absent.returncode, "does not run systemd" in absent.stderr) == (2, True)
