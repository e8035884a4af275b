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

from replbroker.core.effects import RunHooks
from replwire.ext.contracts import Hook
from replwire.ext.registry import ExtensionRegistry, Registration
from replwire.ext.verdicts import Allow, Block, HookRequest, RequireApproval, Verdict

_MAX_ABANDONED = 4
_STACK_BYTES = 16 * 1024 * 1024  # python's parser goes deep, and a user's `ulimit -s` may be small

HookFailure = tuple[Registration, str]


class HookOutcome(NamedTuple):
    """A verdict, whose it is, and the hooks that failed on the way."""

    route: int
    question: HookRequest
    verdict: Verdict
    hook: str | None
    failed: tuple[HookFailure, ...]


def run_hooks(
    registry: ExtensionRegistry, question: HookRequest
) -> tuple[Verdict, str | None, tuple[HookFailure, ...]]:
    """Ask the hooks in their order: the first that does not allow decides. One that raises, or answers with what is no
    verdict, blocks."""
    for record in registry.by_kind(Hook):
        assert isinstance(record.contribution, Hook)
        try:
            verdict = _validate_verdict(record.contribution.before_eval(question))
        except BaseException as error:  # noqa: BLE001 - somebody else's code; `sys.exit` must not end the thread either
            told = f"{type(error).__name__}: {error}"
            return Block("failed, and what it cannot judge must not run"), record.label, ((record, told),)
        if isinstance(verdict, Block) or (
            isinstance(verdict, RequireApproval) and record.label not in question.approved
        ):
            return verdict, record.label, ()
    return Allow(), None, ()


def _validate_verdict(verdict: object) -> Verdict | None:
    if not isinstance(verdict, Allow | Block | RequireApproval | None):
        raise TypeError(f"answered {type(verdict).__name__}, which is no verdict")
    if not all(isinstance(getattr(verdict, name, ""), str) for name in ("title", "reason")):
        raise TypeError(f"answered {type(verdict).__name__} with what is no text")
    return verdict


class HookRunner:
    """Where the loop's questions go, and verdicts come back from. `heard` is called in the loop's thread."""

    def __init__(
        self, registry: ExtensionRegistry, timeout_s: float, on_outcome: Callable[[HookOutcome], None]
    ) -> None:
        self._registry = registry
        self._timeout_s = timeout_s
        self._on_outcome = on_outcome
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outcomes: deque[HookOutcome] = deque()
        self._abandoned: list[_HookThread] = []
        self._current = self._start_thread()

    def register_descriptors(self, register: Callable[[int, Callable[[], None]], None]) -> None:
        """Name the descriptor that tells of verdicts."""
        register(self._wake, self._collect)

    def submit(self, request: RunHooks) -> None:
        """Have an eval judged; the verdict comes through `heard`."""
        self._abandoned = [each for each in self._abandoned if each.thread.is_alive()]
        since = self._current.started_at
        if self._current.is_abandoned and not self._current.thread.is_alive():
            self._current = self._start_thread()
        elif since is not None and time.monotonic() - since > self._timeout_s:
            self._abandon_current()
        if self._current.is_abandoned:
            self._report(
                HookOutcome(request.route, request.question, Block("too many of them do not come back"), None, ())
            )
            return
        self._current.questions.put((time.monotonic() + self._timeout_s, request))

    def _abandon_current(self) -> None:
        old = self._current
        old.is_abandoned = True
        if len(self._abandoned) >= _MAX_ABANDONED:
            return
        self._abandoned.append(old)
        self._current = self._start_thread()
        while (waiting := old.take_waiting()) is not None:
            self._current.questions.put(waiting)

    def _start_thread(self) -> _HookThread:
        each = _HookThread(self._registry, self._report)
        before = threading.stack_size(_STACK_BYTES)
        try:
            each.thread.start()
        finally:
            threading.stack_size(before)
        return each

    def _report(self, judged: HookOutcome) -> None:
        self._outcomes.append(judged)
        os.eventfd_write(self._wake, 1)

    def _collect(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._outcomes:
            self._on_outcome(self._outcomes.popleft())

    def close(self) -> None:
        """Ask nothing more. A hook that does not come back goes with the process."""
        self._current.is_abandoned = True
        self._current.questions.put(None)
        self._current.thread.join(self._timeout_s)


class _HookThread:
    """One thread and what waits for it. `left`: its verdicts are not wanted any more."""

    def __init__(self, registry: ExtensionRegistry, report: Callable[[HookOutcome], None]) -> None:
        self._registry = registry
        self._report = report
        self.questions: SimpleQueue[tuple[float, RunHooks] | None] = SimpleQueue()  # with the end of their time
        self.started_at: float | None = None  # when the question that it is at began
        self.is_abandoned = False
        self.thread = threading.Thread(target=self._run, name="hooks", daemon=True)

    def take_waiting(self) -> tuple[float, RunHooks] | None:
        """A question that it has not begun with."""
        try:
            return self.questions.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        while not self.is_abandoned and (found := self.questions.get()) is not None:
            until, asked = found
            if time.monotonic() >= until:  # the core has blocked it: judging it would only hold up the next one
                continue
            self.started_at = time.monotonic()
            verdict, hook, failed = run_hooks(self._registry, asked.question)
            self.started_at = None
            if not self.is_abandoned:
                self._report(HookOutcome(asked.route, asked.question, verdict, hook, failed))
