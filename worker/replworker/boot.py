"""Composition root of a worker process.

The fork server imports this module, so that a worker starts with everything loaded. No ZeroMQ context may exist before
the fork, and the interpreter is forked before the worker creates one.
"""

from __future__ import annotations

import ctypes
import gc
import glob
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
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
from replworker.snapshots import remove_stale_snapshots, remove_unused

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
    sandbox_request: SandboxRequest | None = None
    extension_runtime: ExternalRuntime | None = None  # for an extension's runtime
    identities: tuple[Identity, ...] = ()
    owner: Principal | None = None  # the session's owner, if it matters before the assignment
    egress: str = ""  # socket of the egress proxy
    secrets: tuple[SecretEntry, ...] = ()  # without their values
    installer: InstallerSettings = NO_INSTALLER
    journal: str = ""  # path of the broker's journal
    open_files: int | None = None  # the broker's original soft limit; its own is now higher
    orphan_ttl_ms: int = 0  # time without a broker after which a session ends
    prepares_checkpoint: bool = False  # before the assignment: sessions take automatic ones


def main(args: WorkerArgs) -> None:
    """Run a worker until the broker disconnects. All processes of the session die with it."""
    gc.set_threshold(20_000, 20, 100)
    os.setsid()  # Ctrl-C at the broker's terminal is for the broker only
    raise_oom_score(_OOM_SCORE)
    if args.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (args.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin.close()
    # Orphans of user code are reparented to this process, and after its death to the broker, which reaps them.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        _run(args)
    finally:
        kill_descendants()
        os._exit(0)  # skip interpreter shutdown: a user's child process could block it


def find_interpreter(args: WorkerArgs, grant: Grant = EVERYTHING) -> ResolvedInterpreter:
    """Resolve the interpreter and its environment.

    Raises:
        EnvironmentUnavailable: the environment cannot be used
    """
    if args.runtime != "python":
        return ResolvedInterpreter(args.interpreter, args.env)
    return resolve_interpreter(
        args.environment, args.interpreter, _environments_dir(args.directory), args.env, grant.rights
    )


def _run(args: WorkerArgs) -> None:
    try:
        started = start_interpreter(args)
    except START_ERRORS as error:
        _report_failure(BrokerLink(args.endpoint, args.token), str(error))
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told: else it would be "exited with code 0"
        _report_failure(BrokerLink(args.endpoint, args.token), _describe_defect(error))
        return
    link, process = BrokerLink(args.endpoint, args.token), started.process
    try:
        first = build_loop(args, link, started, Deadlines())
        ProcessLoop(first, lambda source, body: build_branch(args, source, body)).run()
    except Exception as error:  # noqa: BLE001 - the same
        process.kill()
        _report_failure(link, _describe_defect(error))
    finally:
        process.kill()


def _report_failure(link: BrokerLink, cause: str) -> None:
    link.send_final(pack(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(cause))))


def _describe_defect(error: Exception) -> str:
    with suppress(OSError):  # the broker's log, which may have ended with the broker
        traceback.print_exception(error)
    return f"internal error of the worker: {type(error).__name__}: {error}"


class StartedInterpreter(NamedTuple):
    """An interpreter with its sandbox, and where it sees installed packages."""

    process: InterpreterProcess
    sandbox: SessionSandbox | None
    packages: PackageSettings


def start_interpreter(args: WorkerArgs) -> StartedInterpreter:
    """Start the interpreter, sandboxed if requested. Raises one of START_ERRORS."""
    grant = _grant(args)
    found = find_interpreter(args, grant)
    external = args.extension_runtime
    also = () if external is None else external.reads
    request, records = args.sandbox_request, _placeholders_dir(args.directory)
    packages = _package_settings(args, found)
    sandbox = None
    if request is not None:
        by_list = request.policy.network == "list"
        secrets = prepare_secrets(args.secrets, args.egress) if by_list and args.secrets else None
        sandbox = prepare_sandbox(
            args.runtime, request, found, also, grant, records=records, packages=packages.mount, secrets=secrets
        )
    env = found.env if sandbox is None else sandbox.env
    wrapper = None if sandbox is None else sandbox.wrapper
    if external is not None:
        command = InterpreterCommand([found.executable, *external.arguments], env, wrapper)
    else:
        command = build_command(args.runtime, found.executable, env, wrapper)
    return StartedInterpreter(InterpreterProcess(command), sandbox, packages)


def _package_settings(args: WorkerArgs, found: ResolvedInterpreter) -> PackageSettings:
    paths, request = PackagePaths(args.directory), args.sandbox_request
    try:
        mount = paths.create_mount()
    except OSError:  # a full disk, perhaps: a session can do without packages
        mount = None
    return PackageSettings(
        paths=paths,
        installer=args.installer,
        place=(
            InstallerPlace(None, 0)
            if request is None
            else InstallerPlace(request.machine, request.slot, args.egress, request.policy.upstream_proxy)
        ),
        mount=mount,
        seen_as=(mount or "") if request is None else PACKAGES,
        journal=args.journal,
        executable=found.executable,
        named=found.named,
    )


def _grant(args: WorkerArgs) -> Grant:
    """Resolve the rights of the session's owner. A warm interpreter has no owner yet.

    Raises:
        DirectoryRefused: the owner is not a user of this machine
    """
    if args.owner is None:
        return EVERYTHING
    grants = GrantResolver(args.identities)
    if args.sandbox_request is None:
        grants.check_unsandboxed(args.owner)
    try:
        return grants.resolve(args.owner)
    except DirectoryRefused:
        if args.environment is None or not args.environment.startswith("@"):
            raise
        return Grant(args.owner.identity, NO_RIGHTS)  # the environment is the broker's, and nothing else is needed


def build_loop(
    args: WorkerArgs,
    link: BrokerLink,
    started: StartedInterpreter,
    timers: Deadlines,
) -> WorkerLoop:
    """Build the session and event loop around a link and an interpreter."""
    process, sandbox, packages = started
    by_list = sandbox is not None and sandbox.policy.network == "list"
    settings = WorkerSettings(
        _snapshots_dir(args.directory),
        _hibernated_dir(args.directory, args.journal),
        args.load_paths,
        GrantResolver(args.identities),
        sandbox,
        packages,
        SandboxFamily(),
        SessionNetwork(args.egress, sandbox.secrets) if sandbox is not None and by_list else None,
        prepares_checkpoint=args.prepares_checkpoint,
    )
    return _build_session_loop(args, link, process, settings, timers)


def build_branch(args: WorkerArgs, source: WorkerLoop, body: BranchBody) -> WorkerLoop:
    """Build the session and event loop of a branch: its interpreter is started from a checkpoint of the source."""
    settings = source.session.settings
    process, origin = source.session.start_branch(body.checkpoint)
    settings = settings._replace(packages=_branch_packages(settings.packages), origin=origin)
    return _build_session_loop(args, BrokerLink(args.endpoint, body.token), process, settings, Deadlines())


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
    args: WorkerArgs, link: BrokerLink, process: InterpreterProcess, settings: WorkerSettings, timers: Deadlines
) -> WorkerLoop:
    memory = create_memory_watch(process, settings.sandbox)
    session = WorkerSession(link, process, timers, args.limits, settings, memory)
    reconnection = Reconnection(link, session, timers, args.orphan_ttl_ms / 1000)
    return WorkerLoop(link, process, session, timers, args.limits.worker_silence_ms / 3000, memory, reconnection)


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
    for place in (_snapshots_dir(directory), *glob.glob(_hibernated_dir(directory, "*"))):
        remove_stale_snapshots(place)
    remove_placeholders(_placeholders_dir(directory))


def remove_stored_snapshots(directory: str, journal: str, used: Collection[str]) -> None:
    """Remove files with the variables of hibernated sessions of a broker that are not among the used ones."""
    remove_unused(_hibernated_dir(directory, journal), used)


def _environments_dir(directory: str) -> str:
    return f"{directory}/envs"


def _placeholders_dir(directory: str) -> str:
    return f"{directory}/held"


def _hibernated_dir(directory: str, journal: str) -> str:
    """Return where variables of hibernated sessions are: apart for each broker that shares the state directory."""
    return f"{directory}/hibernated/{os.path.basename(journal).removesuffix('.ndjson')}"


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
