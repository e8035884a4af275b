"""Composition root of a worker process.

The fork server imports this module, so that a worker starts with everything loaded. No ZeroMQ context may exist before
the fork, and the interpreter is forked before the worker creates one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from replwire.deadlines import Deadlines
from replwire.identities import Identity, Principal
from replwire.limits import Limits
from replwire.link import BranchBody, ExitedBody, FrameKind, encode, pack
from replwire.packages import NO_INSTALLER, InstallerSettings
from replwire.secret_entries import SecretEntry
from replworker.grants import GrantResolver
from replworker.link import BrokerLink
from replworker.loop import WorkerLoop
from replworker.memory import create_memory_watch
from replworker.packages.job import InstallerPlace
from replworker.packages.layers import PackagePaths
from replworker.packages.package_runner import PackageSettings
from replworker.packages.removal import PackageRemoval
from replworker.prepared_secrets import prepare_secrets
from replworker.process_loop import ProcessLoop
from replworker.reconnection import Reconnection
from replworker.runtimes import removal
from replworker.runtimes.commands import build_command
from replworker.runtimes.environments import (
    EnvironmentUnavailable,
    ResolvedInterpreter,
    list_environments,
    resolve_interpreter,
)
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.runtimes.process_start import InterpreterCommand, raise_oom_score
from replworker.sandbox.placeholders import remove_placeholders
from replworker.sandbox.plan import PACKAGES, SandboxUnavailable
from replworker.sandbox.rights import NO_RIGHTS, Grant
from replworker.sandbox.workspace import EVERYTHING, DirectoryRefused
from replworker.sandbox_family import SandboxFamily
from replworker.session import WorkerSession
from replworker.session_network import SessionNetwork
from replworker.session_sandbox import SandboxRequest, SessionSandbox, prepare_sandbox
from replworker.session_settings import WorkerSettings
from replworker.snapshots import remove_stale_snapshots

START_ERRORS = (EnvironmentUnavailable, SandboxUnavailable, DirectoryRefused, OSError)
_OOM_SCORE = 250  # between the broker and interpreters
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

gc.collect()
gc.freeze()  # in the fork server: a collection in a worker would otherwise copy all shared pages


@dataclass(frozen=True, slots=True)
class ExternalRuntime:
    """Runtime of an extension: arguments of its command, and paths the sandbox has to show."""

    arguments: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """Arguments of a worker process, from the launcher."""

    endpoint: str
    token: str
    runtime: str
    environment: str | None
    interpreter: str
    env: dict[str, str]
    limits: Limits
    directory: str  # the broker's state directory, with environments and snapshots below
    load_paths: tuple[str, ...]
    confine: SandboxRequest | None = None
    extension_runtime: ExternalRuntime | None = None  # for an extension's runtime
    identities: tuple[Identity, ...] = ()
    asker: Principal | None = None  # the session's owner, if it matters before the assignment
    egress: str = ""  # socket of the egress proxy
    secrets: tuple[SecretEntry, ...] = ()  # without their values
    installer: InstallerSettings = NO_INSTALLER
    journal: str = ""  # path of the broker's journal
    open_files: int | None = None  # the broker's original soft limit; its own is now higher
    orphan_ttl_ms: int = 0  # time without a broker after which a session ends


def main(order: WorkerArgs) -> None:
    """Run a worker until the broker disconnects. All processes of the session die with it."""
    gc.set_threshold(20_000, 20, 100)
    os.setsid()  # Ctrl-C at the broker's terminal is for the broker only
    raise_oom_score(_OOM_SCORE)
    if order.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin.close()
    # Orphans of user code are reparented to this process, and after its death to the broker, which reaps them.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        _run(order)
    finally:
        kill_descendants()
        os._exit(0)  # skip interpreter shutdown: a user's child process could block it


def find_interpreter(order: WorkerArgs, grant: Grant = EVERYTHING) -> ResolvedInterpreter:
    """Resolve the interpreter and its environment.

    Raises:
        EnvironmentUnavailable: the environment cannot be used
    """
    if order.runtime != "python":
        return ResolvedInterpreter(order.interpreter, order.env)
    return resolve_interpreter(
        order.environment, order.interpreter, _environments_dir(order.directory), order.env, grant.rights
    )


def _run(order: WorkerArgs) -> None:
    try:
        started = start_interpreter(order)
    except START_ERRORS as error:
        _report_failure(BrokerLink(order.endpoint, order.token), str(error))
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told: else it would be "exited with code 0"
        _report_failure(BrokerLink(order.endpoint, order.token), _describe_defect(error))
        return
    link, child = BrokerLink(order.endpoint, order.token), started.process
    try:
        first = build_loop(order, link, started, Deadlines())
        ProcessLoop(first, lambda source, body: build_branch(order, source, body)).run()
    except Exception as error:  # noqa: BLE001 - the same
        child.kill()
        _report_failure(link, _describe_defect(error))
    finally:
        child.kill()


def _report_failure(link: BrokerLink, cause: str) -> None:
    link.send_final(pack(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(cause))))


def _describe_defect(error: Exception) -> str:
    with suppress(OSError):  # the broker's log, which may have ended with the broker
        traceback.print_exception(error)
    return f"internal error of the worker: {type(error).__name__}: {error}"


class StartedInterpreter(NamedTuple):
    """An interpreter with its sandbox, and where it sees installed packages."""

    process: InterpreterProcess
    confinement: SessionSandbox | None
    packages: PackageSettings


def start_interpreter(order: WorkerArgs) -> StartedInterpreter:
    """Start the interpreter, sandboxed if requested. Raises one of START_ERRORS."""
    grant = _grant(order)
    found = find_interpreter(order, grant)
    external = order.extension_runtime
    also = () if external is None else external.reads
    request, records = order.confine, _placeholders_dir(order.directory)
    packages = _package_settings(order, found)
    confinement = None
    if request is not None:
        by_list = request.policy.network == "list"
        secrets = prepare_secrets(order.secrets, order.egress) if by_list and order.secrets else None
        confinement = prepare_sandbox(
            order.runtime, request, found, also, grant, records=records, packages=packages.mount, secrets=secrets
        )
    env = found.env if confinement is None else confinement.env
    wrapping = None if confinement is None else confinement.wrapper
    if external is not None:
        command = InterpreterCommand([found.executable, *external.arguments], env, wrapping)
    else:
        command = build_command(order.runtime, found.executable, env, wrapping)
    return StartedInterpreter(InterpreterProcess(command), confinement, packages)


def _package_settings(order: WorkerArgs, found: ResolvedInterpreter) -> PackageSettings:
    paths, request = PackagePaths(order.directory), order.confine
    try:
        mount = paths.create_mount()
    except OSError:  # a full disk, perhaps: a session can do without packages
        mount = None
    return PackageSettings(
        paths=paths,
        installer=order.installer,
        place=(
            InstallerPlace(None, 0)
            if request is None
            else InstallerPlace(request.machine, request.slot, order.egress, request.policy.upstream_proxy)
        ),
        mount=mount,
        seen_as=(mount or "") if request is None else PACKAGES,
        journal=order.journal,
        executable=found.executable,
        named=found.named,
    )


def _grant(order: WorkerArgs) -> Grant:
    """Resolve the rights of the session's owner. A warm interpreter has no owner yet.

    Raises:
        DirectoryRefused: the owner is not a user of this machine
    """
    if order.asker is None:
        return EVERYTHING
    grants = GrantResolver(order.identities)
    if order.confine is None:
        grants.check_unconfined(order.asker)
    try:
        return grants.resolve(order.asker)
    except DirectoryRefused:
        if order.environment is None or not order.environment.startswith("@"):
            raise
        return Grant(order.asker.identity, NO_RIGHTS)  # the environment is the broker's, and nothing else is needed


def build_loop(
    order: WorkerArgs,
    link: BrokerLink,
    started: StartedInterpreter,
    timers: Deadlines,
) -> WorkerLoop:
    """Build the session and event loop around a link and an interpreter."""
    child, confinement, packages = started
    by_list = confinement is not None and confinement.policy.network == "list"
    settings = WorkerSettings(
        _snapshots_dir(order.directory),
        order.load_paths,
        GrantResolver(order.identities),
        confinement,
        packages,
        SandboxFamily(),
        SessionNetwork(order.egress, confinement.secrets) if confinement is not None and by_list else None,
    )
    return _build_session_loop(order, link, child, settings, timers)


def build_branch(order: WorkerArgs, source: WorkerLoop, body: BranchBody) -> WorkerLoop:
    """Build the session and event loop of a branch: its interpreter is started from a checkpoint of the source."""
    settings = source.session.settings
    child, origin = source.session.start_branch(body.checkpoint)
    settings = settings._replace(packages=_branch_packages(settings.packages), origin=origin)
    order = replace(order, orphan_ttl_ms=0)  # a broker finds a process by its first session only
    return _build_session_loop(order, BrokerLink(order.endpoint, body.token), child, settings, Deadlines())


def _branch_packages(packages: PackageSettings) -> PackageSettings:
    """Create a directory for packages that a branch installs, below that of its source, which its interpreter sees."""
    try:
        path = None if packages.mount is None else tempfile.mkdtemp(prefix="branch-", dir=packages.mount)
    except OSError:  # a full disk, perhaps: a session can do without packages
        path = None
    if path is None:
        return packages._replace(mount=None)
    os.chmod(path, 0o755)
    return packages._replace(mount=path, seen_as=f"{packages.seen_as}/{os.path.basename(path)}")


def _build_session_loop(
    order: WorkerArgs, link: BrokerLink, child: InterpreterProcess, settings: WorkerSettings, timers: Deadlines
) -> WorkerLoop:
    memory = create_memory_watch(child, settings.confinement)
    session = WorkerSession(link, child, timers, order.limits, settings, memory)
    reconnection = Reconnection(link, session, timers, order.orphan_ttl_ms / 1000)
    return WorkerLoop(link, child, session, timers, order.limits.worker_silence_ms / 3000, memory, reconnection)


def list_named_environments(directory: str) -> frozenset[str]:
    """Return the named environments in the broker's state directory."""
    return list_environments(_environments_dir(directory))


def set_aside(directory: str, environment: str) -> None:
    """Move a named environment out of the way for `delete_set_aside`.

    Raises:
        OSError: it cannot be moved
    """
    removal.set_aside(_environments_dir(directory), environment)


def has_set_aside(directory: str) -> bool:
    """Return whether `delete_set_aside` has anything to delete."""
    return removal.has_set_aside(_environments_dir(directory))


def delete_set_aside(directory: str) -> list[str]:
    """Delete the environments set aside; return what could not be deleted, and why."""
    return removal.delete_set_aside(_environments_dir(directory))


def set_aside_packages(directory: str, session: str | None = None) -> None:
    """Move the packages of a closed session, and all that dead processes have left, out of the way."""
    removal = PackageRemoval(PackagePaths(directory))
    if session is not None:
        removal.set_aside_session(session)
    removal.set_aside_stale()


def set_aside_closed_packages(directory: str, open_sessions: Callable[[str], set[str]]) -> None:
    """Move the packages out of the way that belong to no open session.

    `open_sessions` returns the ids of the sessions that are open by a journal, from its path.
    """
    PackageRemoval(PackagePaths(directory)).set_aside_closed(open_sessions)


def delete_packages(directory: str, cache_bytes: int) -> list[str]:
    """Delete packages set aside, and the cache if it is too large; return what could not be deleted, and why."""
    return PackageRemoval(PackagePaths(directory)).delete(cache_bytes)


def remove_stale_state(directory: str) -> None:
    """Remove files of killed workers from the broker's state directory."""
    remove_stale_snapshots(_snapshots_dir(directory))
    remove_placeholders(_placeholders_dir(directory))


def _environments_dir(directory: str) -> str:
    return f"{directory}/envs"


def _placeholders_dir(directory: str) -> str:
    return f"{directory}/held"


def _snapshots_dir(directory: str) -> str:
    return f"{directory}/snapshots"


def kill_descendants() -> None:
    """Kill all descendant processes (SIGKILL), including detached ones."""
    while children := _children():
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(pid) for pid in file.read().split()]
