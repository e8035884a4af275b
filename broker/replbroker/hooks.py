"""Hooks in a thread of their own: a slow one holds up evals that wait for it, never the broker.

One that does not come back is left behind with its thread, and a fresh thread takes what waits; when too many are left
behind, every eval is blocked until one comes back. The core blocks what was not judged in time, whatever happens here.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from replbroker.core.effects import Judge
from replwire.ext.contracts import Hook
from replwire.ext.registry import Record, Registry
from replwire.ext.verdicts import Allow, Ask, Block, Question, Verdict

_MOST_STUCK = 4
_STACK_BYTES = 16 * 1024 * 1024  # python's parser goes deep, and a user's `ulimit -s` may be small

Failed = tuple[Record, str]


class Judged(NamedTuple):
    """A verdict, whose it is, and the hooks that failed on the way."""

    route: int
    question: Question
    verdict: Verdict
    hook: str | None
    failed: tuple[Failed, ...]


def judge(registry: Registry, question: Question) -> tuple[Verdict, str | None, tuple[Failed, ...]]:
    """Ask the hooks in their order: the first that does not allow decides. One that raises, or answers with what is no
    verdict, blocks."""
    for record in registry.of(Hook):
        assert isinstance(record.what, Hook)
        try:
            verdict = _checked(record.what.before_eval(question))
        except BaseException as error:  # noqa: BLE001 - somebody else's code; `sys.exit` must not end the thread either
            told = f"{type(error).__name__}: {error}"
            return Block("failed, and what it cannot judge must not run"), record.label, ((record, told),)
        if isinstance(verdict, Block) or (isinstance(verdict, Ask) and record.label not in question.approved):
            return verdict, record.label, ()
    return Allow(), None, ()


def _checked(verdict: object) -> Verdict | None:
    if not isinstance(verdict, Allow | Block | Ask | None):
        raise TypeError(f"answered {type(verdict).__name__}, which is no verdict")
    if not all(isinstance(getattr(verdict, name, ""), str) for name in ("title", "reason")):
        raise TypeError(f"answered {type(verdict).__name__} with what is no text")
    return verdict


class Hooks:
    """Where the loop's questions go, and verdicts come back from. `heard` is called in the loop's thread."""

    def __init__(self, registry: Registry, patience_s: float, heard: Callable[[Judged], None]) -> None:
        self._registry = registry
        self._patience_s = patience_s
        self._heard = heard
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._verdicts: deque[Judged] = deque()
        self._stuck: list[_HookThread] = []
        self._at_work = self._fresh()

    def watch(self, register: Callable[[int, Callable[[], None]], None]) -> None:
        """Name the descriptor that tells of verdicts."""
        register(self._wake, self._collect)

    def ask(self, judge: Judge) -> None:
        """Have an eval judged; the verdict comes through `heard`."""
        self._stuck = [each for each in self._stuck if each.thread.is_alive()]
        since = self._at_work.since
        if self._at_work.left and not self._at_work.thread.is_alive():
            self._at_work = self._fresh()
        elif since is not None and time.monotonic() - since > self._patience_s:
            self._leave_behind()
        if self._at_work.left:
            self._report(Judged(judge.route, judge.question, Block("too many of them do not come back"), None, ()))
            return
        self._at_work.questions.put((time.monotonic() + self._patience_s, judge))

    def _leave_behind(self) -> None:
        old = self._at_work
        old.left = True
        if len(self._stuck) >= _MOST_STUCK:
            return
        self._stuck.append(old)
        self._at_work = self._fresh()
        while (waiting := old.take()) is not None:
            self._at_work.questions.put(waiting)

    def _fresh(self) -> _HookThread:
        each = _HookThread(self._registry, self._report)
        before = threading.stack_size(_STACK_BYTES)
        try:
            each.thread.start()
        finally:
            threading.stack_size(before)
        return each

    def _report(self, judged: Judged) -> None:
        self._verdicts.append(judged)
        os.eventfd_write(self._wake, 1)

    def _collect(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._verdicts:
            self._heard(self._verdicts.popleft())

    def close(self) -> None:
        """Ask nothing more. A hook that does not come back goes with the process."""
        self._at_work.left = True
        self._at_work.questions.put(None)
        self._at_work.thread.join(self._patience_s)


class _HookThread:
    """One thread and what waits for it. `left`: its verdicts are not wanted any more."""

    def __init__(self, registry: Registry, report: Callable[[Judged], None]) -> None:
        self._registry = registry
        self._report = report
        self.questions: SimpleQueue[tuple[float, Judge] | None] = SimpleQueue()  # with the end of their time
        self.since: float | None = None  # when the question that it is at began
        self.left = False
        self.thread = threading.Thread(target=self._work, name="hooks", daemon=True)

    def take(self) -> tuple[float, Judge] | None:
        """A question that it has not begun with."""
        try:
            return self.questions.get_nowait()
        except Empty:
            return None

    def _work(self) -> None:
        while not self.left and (found := self.questions.get()) is not None:
            until, asked = found
            if time.monotonic() >= until:  # the core has blocked it: judging it would only hold up the next one
                continue
            self.since = time.monotonic()
            verdict, hook, failed = judge(self._registry, asked.question)
            self.since = None
            if not self.left:
                self._report(Judged(asked.route, asked.question, verdict, hook, failed))
