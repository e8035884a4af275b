"""Builds the core's configuration from the settings and from what this machine offers."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from replbroker.broker_extensions import BrokerExtensions
from replbroker.config_reload import live_settings
from replbroker.core.config import CoreConfig
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replbroker.launch.forkserver_launcher import list_named_environments
from replbroker.sinks.factory import needs_every_event
from replwire.config import Config, PackagesSection
from replwire.identities import Identities
from replwire.keys import KeyStore
from replwire.packages import INSTALLER_VARIABLES, InstallerSettings

# Variables of the broker's environment that interpreters inherit; `[session] pass-env` adds to them.
_INHERITED_ENV = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TERM",
    "TMPDIR",
)


@dataclass(frozen=True)
class BrokerRun:
    """Identification of one run of the broker.

    Attributes:
        boot_id: Random id of this start, part of the ids of its events.
        versions: Names and versions of the software.
    """

    boot_id: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def begin(cls) -> BrokerRun:
        """Identify the run that begins now."""
        return cls(secrets.token_hex(4), _versions())

    @property
    def version(self) -> str:
        """Version of replctl."""
        return dict(self.versions)["replctl"]


@dataclass(frozen=True, kw_only=True)
class CoreServices:
    """Objects that the core's configuration refers to beside the settings.

    Attributes:
        run: Identification of this run.
        runtimes: Names of the runtimes that this machine has, the default one first.
        keys: The keys and tokens of clients.
        sandbox: What the sandbox probe found.
        extensions: The loaded extensions.
        state_dir: The broker's state directory.
    """

    run: BrokerRun
    runtimes: tuple[str, ...]
    keys: KeyStore
    sandbox: SandboxStatus
    extensions: BrokerExtensions
    state_dir: Path


def build_core_config(config: Config, services: CoreServices, *, idle_exit: bool) -> CoreConfig:
    """Build the core's configuration.

    Args:
        config: The settings.
        services: Objects that the configuration refers to.
        idle_exit: Whether the broker ends after `broker.idle-exit-ms` without sessions.
    """
    live, keys, extensions = live_settings(config, idle_exit), services.keys, services.extensions
    return CoreConfig(
        limits=live.limits,
        warm_workers=live.warm_workers,
        idle_exit_ms=live.idle_exit_ms,
        new_id=lambda: str(uuid.uuid4()),
        monotonic_to_unix=monotonic_to_unix,
        started=time.monotonic(),
        runtimes=services.runtimes,
        agents=live.agents,
        identities=Identities(list(live.identities)),
        audit=config.broker.audit,
        sandbox=services.sandbox,
        broker_user=f"uid:{os.getuid()}",
        admins=live.admins,
        name_of_token=lambda token: keys.name_for_token(token) or extensions.name_for_token(token),
        versions=services.run.versions,
        boot_id=services.run.boot_id,
        emit_all_events=needs_every_event(config),
        credentials_of=lambda name: keys.file_versions(name) or extensions.credentials_of(name),
        environments=lambda: list_named_environments(str(services.state_dir)),
        has_hooks=extensions.has_hooks,
        extension_ops=extensions.describe_operations(),
        checkpoints=config.session.checkpoints,
        checkpoint_files=config.session.checkpoint_files,
        install_packages=config.packages.install,
        more_hosts=config.sandbox.more_hosts,
        sessions_outlive=config.broker.orphan_ttl_ms > 0,
        hibernate_after_ms=config.session.hibernate_after_ms,
    )


def find_interpreters(config: Config) -> dict[str, str]:
    """Return the interpreter of each runtime that this machine has, the default runtime first."""
    found = {
        "python": config.python.interpreter or sys.executable,
        "node": config.node.interpreter or shutil.which("node"),
        "bash": config.bash.interpreter or shutil.which("bash"),
    }
    return {runtime: path for runtime, path in found.items() if path}


def session_env(environ: Mapping[str, str], extra: list[str]) -> dict[str, str]:
    """Return the variables of the broker's environment that sessions inherit; `extra` names more of them."""
    return {name: environ[name] for name in (*_INHERITED_ENV, *extra) if name in environ}


def installer_settings(environ: Mapping[str, str], section: PackagesSection) -> InstallerSettings:
    """Return the settings of package installers: sessions get none of these variables."""
    variables = {name: value for name, value in environ.items() if INSTALLER_VARIABLES.fullmatch(name)}
    home = os.path.expanduser("~")
    return InstallerSettings(variables, home, section.builds, section.cache_bytes)


def monotonic_to_unix() -> float:
    """Return the Unix time of monotonic zero; it changes when the wall clock is set."""
    return time.time() - time.monotonic()


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version  # slow to import

    return (
        ("replctl", version("replctl")),
        ("python", sys.version.split()[0]),
        ("pyzmq", zmq.__version__),
        ("libzmq", zmq.zmq_version()),
        ("protocol", "1"),
    )
