"""Settings of a worker from the broker's config."""

from __future__ import annotations

from typing import NamedTuple

from replwire.limits import Limits
from replworker.checkpoints.copies import WaitingCopy
from replworker.grants import GrantResolver
from replworker.packages.package_runner import PackageSettings
from replworker.runtimes.frames import AssignFrame, ReadyFrame
from replworker.sandbox_family import SandboxFamily
from replworker.session_network import SessionNetwork
from replworker.session_sandbox import SessionSandbox


class BranchOrigin(NamedTuple):
    """The beginning of a branch: its source's checkpoint.

    Attributes:
        ready: first frame of the source's interpreter
        copy: the checkpoint's copy, None if it has ended
        not_restored: what the copy does not have, in sentences
        assignment: what its source was assigned, if the copy was made before that
    """

    ready: ReadyFrame
    copy: WaitingCopy | None
    not_restored: list[str]
    assignment: AssignFrame | None = None


class WorkerSettings(NamedTuple):
    """Settings of a worker from the broker's config."""

    snapshots: str  # directory
    hibernated: str  # directory of snapshots of hibernated sessions
    load_paths: tuple[str, ...]
    grants: GrantResolver
    sandbox: SessionSandbox | None
    packages: PackageSettings
    family: SandboxFamily
    network: SessionNetwork | None = None  # in sandboxes with a list of hosts
    origin: BranchOrigin | None = None  # of a branch
    prepares_checkpoint: bool = False  # before the assignment


def interpreter_limits(limits: Limits) -> dict[str, int]:
    """Return the limits that an interpreter applies itself."""
    return {
        "value-bytes": limits.max_value_bytes,
        "trace-frames": limits.max_trace_frames,
        "trace-bytes": limits.max_trace_bytes,
        "image-bytes": limits.max_image_bytes,
        "images": limits.max_images,
    }
