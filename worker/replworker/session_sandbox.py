"""Sandbox of a session in its worker: prepared before the interpreter starts, given its directory on assignment."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replwire.link import AssignBody
from replwire.policy import Policy
from replworker.egress.listeners import Listener
from replworker.grants import GrantResolver
from replworker.prepared_secrets import PreparedSecrets
from replworker.runtimes.environments import ResolvedInterpreter
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.mount_helper import AttachResult
from replworker.sandbox.placeholders import create_placeholders
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.rights import Grant, Rights, acting_as
from replworker.sandbox.workspace import EVERYTHING, DirectoryRefused, check_directory, check_owner_directories
from replworker.snapshots import package_directory

GetGrant = Callable[[], Grant]  # raises DirectoryRefused
_OWN = ("HOME", "TMPDIR")  # the sandbox's own; other values would name missing directories
_OWN_PREFIXES = ("XDG_", "SSH_", "DBUS_")  # these point outside


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """Sandbox part of the worker's arguments.

    `slot` is unique among live sessions; `directory` is mounted at the start.
    """

    policy: Policy
    machine: Machine
    slot: int
    directory: str | None = None


class EnteredSandbox(NamedTuple):
    """A sandbox that belongs to a session: its directory, why it has none although one was requested, its sockets."""

    directory: str | None = None
    problem: str | None = None
    sockets: Sequence[socket.socket] = ()


@dataclass(slots=True)
class SessionSandbox:
    """Sandbox around one interpreter."""

    policy: Policy
    wrapper: BubblewrapSandbox
    env: dict[str, str]
    directory: str | None  # what was mounted at the start
    records: str  # directory of placeholder records
    held_fds: tuple[int, ...] = ()
    workspace: str | None = None  # the session's directory, once it is mounted
    secrets: PreparedSecrets | None = None

    @property
    def rights(self) -> Rights | None:
        """Rights of the user whom the session's processes run as; None: the broker's own."""
        uid = self.wrapper.run_as
        return None if uid is None else Rights(uid, uid, ())

    def enter(
        self, directory: str | None, needed: bool, granted: GetGrant, listeners: Sequence[Listener] = ()
    ) -> EnteredSandbox:
        """Mount the session's directory, and open these sockets in its network namespace.

        Raises:
            DirectoryRefused: the directory is required and refused, or the sockets cannot be opened
        """
        real = problem = rights = None
        try:
            if directory is not None:
                grant = granted()
                real, rights = _check_as_owner(self.policy, directory, grant), grant.rights
        except DirectoryRefused as refused:
            if needed:
                raise
            problem = str(refused)
        mounted = real if real != self.directory else None
        if mounted is None and not listeners:
            self.wrapper.dismiss_helper()
            self.workspace = real
            return EnteredSandbox(real, problem)
        done = self._attach(mounted, rights, listeners)
        if done.error is None:
            self.workspace = real
            return EnteredSandbox(real, problem, done.sockets)
        self.wrapper.dismiss_helper()
        if needed or listeners:
            raise DirectoryRefused(done.error)
        return EnteredSandbox(None, done.error)

    def _attach(self, directory: str | None, rights: Rights | None, listeners: Sequence[Listener]) -> AttachResult:
        try:
            if directory is not None:
                self.held_fds = create_placeholders(self.policy, directory, self.records, rights)
        except OSError as error:
            text = f"{directory}: cannot create placeholders for protected files: {error.strerror}"
            return AttachResult(text, [])
        return self.wrapper.attach(self.policy, directory, rights, listeners)

    @staticmethod
    def check_env(env: dict[str, str]) -> None:
        """Reject variables that the sandbox sets itself.

        Raises:
            DirectoryRefused: such a variable is given
        """
        for name in env:
            if name in _OWN or name.startswith(_OWN_PREFIXES):
                raise DirectoryRefused(f"env: {name} is set by the sandbox")


def prepare_sandbox(
    runtime: str,
    request: SandboxRequest,
    found: ResolvedInterpreter,
    reads: tuple[str, ...] = (),
    grant: Grant = EVERYTHING,
    *,
    records: str,
    packages: str | None,
    secrets: PreparedSecrets | None = None,
) -> SessionSandbox:
    """Prepare the sandbox of an interpreter.

    Args:
        runtime: name of the runtime
        request: sandbox part of the worker's arguments
        found: the interpreter
        reads: further paths that the runtime reads
        grant: rights of the owner, if it is known
        records: the broker's directory for records of placeholders
        secrets: the session's secrets, if it has any
        packages: directory with packages that the session installs

    Raises:
        SandboxUnavailable: the machine cannot provide this sandbox
        DirectoryRefused: a path cannot be granted
        OSError: a file cannot be read
    """
    directory = _initial_directory(request, grant)
    held = () if directory is None else create_placeholders(request.policy, directory, records, grant.rights)
    also = (f"{package_directory('dill')}/dill",) if runtime == "python" else reads
    plan = prepare_plan(
        request.policy,
        request.machine,
        runtime,
        found.executable,
        found.env | (secrets.env if secrets is not None else {}),
        slot=request.slot,
        directory=directory,
        also=also,
        trusted=not found.named,
        managed=found.managed,
        grant=grant,
        has_holder=runtime == "python",
        files=None if secrets is None else secrets.files,
        packages=packages,
    )
    return SessionSandbox(request.policy, BubblewrapSandbox(plan), plan.env, directory, records, held, secrets=secrets)


def enter_directory(
    sandbox: SessionSandbox | None,
    grants: GrantResolver,
    assignment: AssignBody,
    env: dict[str, str],
    listeners: Sequence[Listener] = (),
) -> EnteredSandbox:
    """Prepare the session's working directory, and its sockets in a sandbox.

    Raises:
        DirectoryRefused: the directory is required and refused, or the sockets cannot be opened
    """
    if sandbox is not None:
        sandbox.check_env(env)
        return sandbox.enter(assignment.cwd, assignment.cwd_needed, lambda: grants.resolve(assignment.owner), listeners)
    grants.check_unsandboxed(assignment.owner)
    directory = assignment.cwd
    if directory is not None and (grant := grants.resolve(assignment.owner)).directories:
        check_owner_directories(grant, directory, os.path.realpath(directory))
    if directory is not None and not assignment.cwd_needed and not os.path.isdir(directory):
        return EnteredSandbox(None, f"{directory} is not a directory on this machine")
    return EnteredSandbox(directory)


def _initial_directory(request: SandboxRequest, grant: Grant) -> str | None:
    """Return the directory to mount at the start, or None if it is refused; the assignment checks again."""
    if request.directory is None:
        return None
    try:
        return _check_as_owner(request.policy, request.directory, grant)
    except DirectoryRefused:
        return None


def _check_as_owner(policy: Policy, directory: str, grant: Grant) -> str:
    with acting_as(grant.rights):
        return check_directory(policy, directory, grant.home or os.path.expanduser("~"), grant)
