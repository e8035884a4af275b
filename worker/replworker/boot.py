"""How a worker process begins: the one entry, and the only place that builds its parts.

It is imported by the fork server as well, so that a worker starts with everything loaded. No ZeroMQ context
may exist before the fork, and the interpreter is forked before the worker has one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass

from replwire.deadlines import Deadlines
from replwire.identities import Asker, Identity
from replwire.limits import Limits
from replwire.link import Gone, Kind, encode, pack
from replworker.confine.plan import Unavailable
from replworker.confine.reserve import release
from replworker.confine.rights import NOBODY, Grant
from replworker.confine.workspace import EVERYTHING, Refused
from replworker.confinement import Confine, Confinement, confine
from replworker.grants import Grants
from replworker.link import Link
from replworker.loop import Loop
from replworker.memory import watch
from replworker.runtimes import removal
from replworker.runtimes.child import Child, Command, raise_oom_score
from replworker.runtimes.environments import Found, NoEnvironment, find, kept
from replworker.runtimes.pick import pick
from replworker.session import Session, Settings
from replworker.snapshots import sweep

CANNOT_START = (NoEnvironment, Unavailable, Refused, OSError)
_OOM_SCORE = 250  # between the broker and interpreters
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

gc.collect()
gc.freeze()  # in the fork server: a collection in a worker must not touch, and so copy, every shared page


@dataclass(frozen=True, slots=True)
class Given:
    """What an extension says of its runtime: the command's arguments, and what the sandbox has to show for it."""

    arguments: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told by the launcher that started it."""

    endpoint: str
    token: str
    runtime: str
    environment: str | None
    interpreter: str
    env: dict[str, str]
    limits: Limits
    folder: str  # of the broker's state: named environments and snapshots have theirs below it
    load_paths: tuple[str, ...]
    confine: Confine | None = None
    given: Given | None = None  # for a runtime that is not ours
    identities: tuple[Identity, ...] = ()
    asker: Asker | None = None  # whose the session will be, where that counts before it is claimed
    open_files: int | None = None  # the soft limit that the broker came with; its own is higher


def main(order: Order) -> None:
    """Be a worker until the broker is gone. Everything the session started dies with this process."""
    gc.set_threshold(20_000, 20, 100)
    os.setsid()  # a Ctrl-C at the broker's terminal is the broker's
    raise_oom_score(_OOM_SCORE)
    if order.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin.close()
    # What the user's code leaves behind comes to us, and through our death to the broker, which buries it.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        _keep_session(order)
    finally:
        kill_descendants()
        os._exit(0)  # nothing of ours is worth an interpreter's tidy end, and a user's child may hold it up


def interpreter_of(order: Order, grant: Grant = EVERYTHING) -> Found:
    """Which interpreter to run, with which environment. Raises NoEnvironment."""
    if order.runtime != "python":
        return Found(order.interpreter, order.env)
    return find(order.environment, order.interpreter, _environments(order.folder), order.env, grant.rights)


def _keep_session(order: Order) -> None:
    try:
        child, confinement = start_interpreter(order)
    except CANNOT_START as error:
        _give_up(Link(order.endpoint, order.token), str(error))
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told: else it would be "exited with code 0"
        _give_up(Link(order.endpoint, order.token), _defect(error))
        return
    link = Link(order.endpoint, order.token)
    try:
        keep(order, link, child, confinement, Deadlines()).run()
    except Exception as error:  # noqa: BLE001 - the same
        child.kill()
        _give_up(link, _defect(error))
    finally:
        child.kill()


def _give_up(link: Link, cause: str) -> None:
    link.last_word(pack(Kind.GONE, encode(Gone(cause))))


def _defect(error: Exception) -> str:
    traceback.print_exception(error)  # to the broker's log
    return f"a defect of the worker: {type(error).__name__}: {error}"


def start_interpreter(order: Order) -> tuple[Child, Confinement | None]:
    """The interpreter, confined where that is asked for. Raises one of CANNOT_START."""
    grant = _grant(order)
    found = interpreter_of(order, grant)
    given = order.given
    also = () if given is None else given.reads
    told, records = order.confine, _records(order.folder)
    confinement = None if told is None else confine(order.runtime, told, found, also, grant, records=records)
    env = found.env if confinement is None else confinement.env
    wrapping = None if confinement is None else confinement.wrapping
    if given is not None:
        return Child(Command([found.executable, *given.arguments], env, wrapping)), confinement
    return Child(pick(order.runtime, found.executable, env, wrapping)), confinement


def _grant(order: Order) -> Grant:
    """What the session's owner may have opened. A warm interpreter has no owner yet, and opens nothing of anybody's.
    Raises Refused."""
    if order.asker is None:
        return EVERYTHING
    grants = Grants(order.identities)
    if order.confine is None:
        grants.check_unconfined(order.asker)
    try:
        return grants.of(order.asker)
    except Refused:
        if order.environment is None or not order.environment.startswith("@"):
            raise
        return Grant(order.asker.identity, NOBODY)  # the environment is the broker's, and all that there is


def keep(order: Order, link: Link, child: Child, confinement: Confinement | None, timers: Deadlines) -> Loop:
    """All that stands between a link and an interpreter, put together."""
    settings = Settings(_shelf(order.folder), order.load_paths, Grants(order.identities), confinement)
    memory = watch(child, confinement)
    session = Session(link, child, timers, order.limits, settings, memory)
    return Loop(link, child, session, timers, order.limits.worker_silence_ms / 3000, memory)


def kept_environments(folder: str) -> frozenset[str]:
    """The named environments in the broker's state folder."""
    return kept(_environments(folder))


def set_aside(folder: str, environment: str) -> None:
    """Take a named environment out of the broker's state folder, for `delete_set_aside`. Raises OSError."""
    removal.set_aside(_environments(folder), environment)


def has_set_aside(folder: str) -> bool:
    """Whether there is something for `delete_set_aside`."""
    return removal.has_set_aside(_environments(folder))


def delete_set_aside(folder: str) -> list[str]:
    """Delete what was set aside; what could not be deleted, and why."""
    return removal.delete_set_aside(_environments(folder))


def tidy(folder: str) -> None:
    """Remove from the broker's state folder what workers that were killed have left there."""
    sweep(_shelf(folder))
    release(_records(folder))


def _environments(folder: str) -> str:
    return f"{folder}/envs"


def _records(folder: str) -> str:
    return f"{folder}/held"


def _shelf(folder: str) -> str:
    return f"{folder}/snapshots"


def kill_descendants() -> None:
    """SIGKILL every process below this one, however it detached itself, until none is left."""
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
