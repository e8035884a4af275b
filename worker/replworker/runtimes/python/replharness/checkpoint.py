"""Checkpoints: copies of this process that wait, made by fork between two evals, to start interpreters from.

A copy is forked twice, so it is no child of the session. It blocks all signals, gives up what only one process may
have, reports on its own socket and waits there: each `wake` starts an interpreter, the end of the socket ends the copy.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

# _signal as in interrupts.py: importing signal is expensive.
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals  # type: ignore[import-not-found]
from _thread import _count

from . import SEALED
from .bounds import MESSAGE_BYTES, cut_marked, plain, type_name
from .fd_receiver import NoDescriptor, ReceivedDescriptor
from .held_files import Survey, duplicate_high

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    from .channel import Channel
    from .run import Runner

    Message = Dict[str, Any]

__builtins__ = SEALED

_CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC
_FORK_TRIES, _FORK_PAUSE_S = 200, 0.01
_NAMES = 10  # threads named in an answer
_NAME_CHARS = 60


class Checkpointer:
    """Takes checkpoints. `own_fds` are the harness's descriptors: control, background, trace and descriptor socket."""

    def __init__(self, channel: Channel, own_fds: Tuple[int, ...], runner: Runner, revive: Callable[[], None]) -> None:
        self._channel = channel
        self._own_fds = own_fds
        self._runner = runner
        self._revive = revive
        self._pool_tasks = sys.maxsize  # so many tasks were there when threads of a native library were found

    def take(self, message: Message) -> Any:
        """Take a checkpoint and reply; return None, or in an interpreter started from the copy its first frame."""
        number, automatic = message["n"], message.get("automatic") is True
        try:
            return self._take(number, automatic)
        except MemoryError:  # the session has used all it may: it goes on as before
            return _answer(number, error="out of memory")

    def _take(self, number: int, automatic: bool) -> Any:
        try:
            with ReceivedDescriptor(self._own_fds[3], number) as fd:
                link = duplicate_high(fd)
        except (NoDescriptor, OSError) as exc:
            return _answer(number, error=cut_marked("%s: %s" % (type_name(type(exc)), exc), MESSAGE_BYTES))
        try:
            threads = _thread_names()
            if automatic and (threads or _tasks() >= self._pool_tasks):
                return _answer(number, threads=threads, native=0 if threads else 1, refused=True)
            return self._fork(number, automatic, link, threads)
        finally:
            os.close(link)

    def _fork(self, number: int, automatic: bool, link: int, threads: List[str]) -> Any:
        survey = Survey((0, 1, 2, link, *self._own_fds, *self._runner.loop_fds()))
        state = _random_state()
        mask = pthread_sigmask(SIG_BLOCK, valid_signals())
        try:
            try:
                pid = _quiet_fork() if threads else os.fork()
            except OSError as exc:
                return _answer(number, error=cut_marked("fork: %s" % exc.strerror, MESSAGE_BYTES))
            if pid == 0:
                self._become_copy(link, survey, state)  # returns in an interpreter started from the copy
                return {"t": "woken"}
            # A library that ends its threads at a fork, as OpenBLAS does, has done so by now.
            native = max(0, _tasks() - 1 - _count())
            if native and automatic:
                self._pool_tasks = min(self._pool_tasks, native + 1 + len(threads))
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:  # the user ignores SIGCHLD
                pass
            self._channel.send(
                _answer(number, threads=threads, native=native, refused=bool(native and automatic), **survey.counts())
            )
        finally:
            pthread_sigmask(SIG_SETMASK, mask)
        try:
            self._runner.warm()  # the faults of copy-on-write are paid now rather than in the next eval
        except MemoryError:
            pass
        return None

    def _become_copy(self, link: int, survey: Survey, state: Any) -> None:
        try:
            if os.fork():
                os._exit(0)
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(null)
            for fd in self._own_fds[1:]:  # the control channel is closed in every fork
                os.close(fd)
            survey.give_up()
            sock = _socket.socket(fileno=link)
            sock.send(b"here")
            fds = _wait(sock)
            os.setsid()  # what this interpreter starts can be told from what others of the sandbox have started
            sock.detach()
            high = [duplicate_high(fd) for fd in fds]
            for fd in fds:
                os.close(fd)
            for at, target in enumerate((0, 1, 2, *self._own_fds)):
                os.dup2(high[at], target, target < 3)
                os.close(high[at])
            _set_random_state(state)
            survey.forget_children()
            self._revive()
        except BaseException:
            os._exit(1)


def _wait(sock: Any) -> List[int]:
    """Fork at each request; return its descriptors in the new process. The process that waits never returns."""
    while True:
        data, parts, _, _ = sock.recvmsg(16, _socket.CMSG_SPACE(7 * 4), _CLOEXEC)
        if not data:
            os._exit(0)
        fds: List[int] = []
        for level, kind, content in parts:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content), 4)]
        try:
            pid = _fork_patiently() if len(fds) == 7 else -1
        except OSError:  # the worker sees that nobody has its descriptors
            pid = -1
        if pid == 0:
            if _fork_patiently():
                os._exit(0)
            return fds
        for fd in fds:
            os.close(fd)
        if pid > 0:
            os.waitpid(pid, 0)


def _fork_patiently() -> int:
    """Fork; processes that were killed just now may still count for the session's limit."""
    for _ in range(_FORK_TRIES):
        try:
            return os.fork()
        except OSError:
            time.sleep(_FORK_PAUSE_S)
    return os.fork()


def _quiet_fork() -> int:
    """Fork without the warning about threads of Python 3.12."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def _thread_names() -> List[str]:
    """Return names of other Python threads; without names if `threading` does not know them."""
    count = _count()
    if not count:
        return []
    module = sys.modules.get("threading")
    active = module.__dict__.get("_active") if module is not None else None
    main = module.__dict__.get("_main_thread") if module is not None else None
    known = [each for each in list(active.values()) if each is not main] if type(active) is dict else []
    names = [plain(str(each.__dict__.get("_name"))[:_NAME_CHARS]) for each in known[:_NAMES]]
    return names or ["%d of _thread" % count]


def _random_state() -> Any:
    """Return the state of the global random generator, which reseeds itself in every fork."""
    module = sys.modules.get("random")
    instance = module.__dict__.get("_inst") if module is not None else None
    try:
        return instance.getstate() if instance is not None else None
    except Exception:  # replaced by the user
        return None


def _set_random_state(state: Any) -> None:
    if state is not None:
        try:
            sys.modules["random"].__dict__["_inst"].setstate(state)
        except Exception:
            pass


def _answer(number: int, **more: Any) -> Message:
    return {"t": "checkpointed", "n": number, **more}
