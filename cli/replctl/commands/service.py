"""`replctl service`: a broker that systemd runs, for one user or for the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import click

from replctl.atomic_file import write_atomically
from replctl.client.address import is_listening
from replctl.client.errors import ReplError
from replctl.commands.output import CommandOutput
from replctl.commands.service_units import system_socket, system_unit, user_unit
from replwire.faults import ExitCode
from replwire.paths import default_endpoint

CHECK_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_UNIT = "replctl.service"
_SYSTEM_DIRECTORY = "/etc/systemd/system"
_system_option = click.option("--system", is_flag=True, help="For the whole machine, as root. [for you]")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Print files and commands, and do nothing.")


class Service(NamedTuple):
    """The units of a service, and how systemd is called for it."""

    directory: str
    units: dict[str, str]
    systemctl: tuple[str, ...]
    journal: str
    endpoint: str


@click.group()
def service() -> None:
    """Have systemd run the broker: from the start of the machine or of your session, and again after a crash."""


@service.command()
@_system_option
@click.option("--config", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Config file of the broker.")
@_dry_run_option
def install(system: bool, path: str | None, dry_run: bool) -> int:
    """Write the unit, enable and start it, and check that its broker answers.

    With --system the unit runs as the user replctl with /etc/replctl/replctl.toml, and a socket unit serves the group
    replctl-agents; both must exist, and a line says how to create them.
    """
    found, screen = _service(system, path), CommandOutput()
    commands = _commands(found)
    if dry_run:
        for name, text in found.units.items():
            screen.line(f"# {found.directory}/{name}")
            screen.block(text)
        for words in commands:
            screen.line(" ".join(words))
        return ExitCode.OK
    _require_systemd(found)
    if system:
        _require_system_accounts(path)
    for name, text in found.units.items():
        try:
            write_atomically(os.path.join(found.directory, name), text, 0o644)
        except OSError as error:
            raise click.ClickException(f"cannot write {found.directory}/{name}: {error.strerror}") from None
        screen.notice(f"wrote {found.directory}/{name}")
    for words in commands:
        _call(words)
    return _check(found, screen, system)


@service.command()
@_system_option
@_dry_run_option
def remove(system: bool, dry_run: bool) -> int:
    """Stop and disable the service and delete its units. Its sessions end."""
    found, screen = _service(system, None), CommandOutput()
    files = [os.path.join(found.directory, name) for name in found.units]
    stop = (*found.systemctl, "disable", "--now", *found.units)
    if dry_run:
        for words in (stop, ("rm", "-f", *files), (*found.systemctl, "daemon-reload")):
            screen.line(" ".join(words))
        return ExitCode.OK
    _require_systemd(found)
    if not any(map(os.path.exists, files)):
        screen.notice(f"no service in {found.directory}")
        return ExitCode.NAME
    _call(stop)
    for file in filter(os.path.exists, files):
        os.unlink(file)
    _call((*found.systemctl, "daemon-reload"))
    screen.notice(f"removed {', '.join(files)}")
    return ExitCode.OK


def _service(system: bool, path: str | None) -> Service:
    program = _program()
    if system:
        units = {_UNIT: system_unit(program, path), "replctl.socket": system_socket()}
        journal = "journalctl -u replctl"
        return Service(_SYSTEM_DIRECTORY, units, ("systemctl",), journal, "ipc:///run/replctl.sock")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    settings = {name: os.environ[name] for name in ("REPLCTL_STATE_DIR", "REPLCTL_CONFIG") if os.environ.get(name)}
    unit = user_unit(program, None if path is None else os.path.abspath(path), settings)
    endpoint = default_endpoint(os.environ, os.getuid())
    directory = os.path.join(base, "systemd", "user")
    return Service(directory, {_UNIT: unit}, ("systemctl", "--user"), "journalctl --user -u replctl", endpoint)


def _program() -> str:
    """Return the program of this installation."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "replctl")
    found = beside if os.access(beside, os.X_OK) else shutil.which("replctl")
    if found is None:
        raise click.UsageError("the program replctl is not installed beside this Python: pip install replctl there")
    return found


def _commands(found: Service) -> tuple[tuple[str, ...], ...]:
    return (*found.systemctl, "daemon-reload"), (*found.systemctl, "enable", "--now", *reversed(found.units))


def _require_systemd(found: Service) -> None:
    if shutil.which("systemctl") is None:
        raise click.UsageError("there is no systemctl on the PATH: this machine does not run systemd")
    if found.systemctl == ("systemctl",) and os.geteuid() != 0:
        raise click.UsageError("--system needs root: sudo replctl service install --system")


def _require_system_accounts(path: str | None) -> None:
    import grp
    import pwd

    missing = []
    if "replctl" not in {each.pw_name for each in pwd.getpwall()}:
        missing.append("useradd --system --home-dir /var/lib/replctl --shell /usr/sbin/nologin replctl")
    if "replctl-agents" not in {each.gr_name for each in grp.getgrall()}:
        missing.append("groupadd --system replctl-agents")
    if not os.path.exists(config := path or "/etc/replctl/replctl.toml"):
        missing.append(f"install -D -m 0644 deploy/replctl.toml {config}")
    if missing:
        raise click.UsageError("nothing was written; first run:\n" + "\n".join(f"  {each}" for each in missing))


def _call(words: tuple[str, ...]) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    if ended.returncode:
        raise click.ClickException(f"{' '.join(words)} failed: {(ended.stderr or ended.stdout).strip()}")


def _check(found: Service, screen: CommandOutput, system: bool) -> int:
    """Wait until the service's broker listens, and say so. Returns the exit code."""
    deadline = time.monotonic() + CHECK_SECONDS
    while not _is_listening(found.endpoint):
        if time.monotonic() >= deadline:
            screen.notice(f"no broker listens at {found.endpoint} yet; its log: {found.journal}")
            return ExitCode.NO_BROKER
        time.sleep(_LOOK_SECONDS)
    screen.notice(f"the service is enabled, and its broker listens at {found.endpoint}; its log: {found.journal}")
    if not system:
        screen.notice("it ends with your last login; loginctl enable-linger keeps it")
    return ExitCode.OK


def _is_listening(endpoint: str) -> bool:
    try:
        return is_listening(endpoint)
    except ReplError:  # no right to connect yet
        return False
