"""Settings of a worker from the broker's config."""

from __future__ import annotations

from typing import NamedTuple

from replworker.grants import GrantResolver
from replworker.packages.package_runner import PackageSettings
from replworker.session_network import SessionNetwork
from replworker.session_sandbox import SessionSandbox


class WorkerSettings(NamedTuple):
    """Settings of a worker from the broker's config."""

    snapshots: str  # directory
    load_paths: tuple[str, ...]
    grants: GrantResolver
    confinement: SessionSandbox | None
    packages: PackageSettings
    network: SessionNetwork | None = None  # in sandboxes with a list of hosts
