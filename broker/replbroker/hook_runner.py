"""Runs hooks in a thread of their own: a slow hook delays the evals that wait for it, never the broker.

A hook that does not return is abandoned with its thread, and a fresh thread takes over what waits. When too many are
abandoned, every eval is blocked until one returns. The core blocks what was not decided in time in any case.
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
_STACK_BYTES = 16 * 1024 * 1024  # Python's parser recurses deeply, and a user's `ulimit -s` may be small

HookFailure = tuple[Registration, str]


class HookOutcome(NamedTuple):
    """A verdict.

    Attributes:
        route: Route of the eval in the core.
        request: The request that the hooks decided about.
        verdict: The verdict.
        hook: Label of the hook that decided, None where none did alone.
        failures: Hooks that failed on the way.
    """

    route: int
    request: HookRequest
    verdict: Verdict
    hook: str | None
    failures: tuple[HookFailure, ...]


def run_hooks(registry: ExtensionRegistry, request: HookRequest) -> tuple[Verdict, str | None, tuple[HookFailure, ...]]:
    """Run the hooks in order; the first that does not allow the eval decides.

    A hook that raises, or that returns no verdict, blocks the eval.

    Returns:
        The verdict, the label of the hook that decided, and the hooks that failed.
    """
    for registration in registry.by_kind(Hook):
        hook = registration.contribution
        assert isinstance(hook, Hook)
        try:
            verdict = _validate_verdict(hook.before_eval(request))
        except BaseException as error:  # noqa: BLE001 - foreign code; `sys.exit` must not end the thread either
            failure = registration, f"{type(error).__name__}: {error}"
            return Block("failed, and what it cannot judge must not run"), registration.label, (failure,)
        is_approved = registration.label in request.approved
        if isinstance(verdict, Block) or (isinstance(verdict, RequireApproval) and not is_approved):
            return verdict, registration.label, ()
    return Allow(), None, ()


def _validate_verdict(verdict: object) -> Verdict | None:
    if not isinstance(verdict, Allow | Block | RequireApproval | None):
        raise TypeError(f"answered {type(verdict).__name__}, which is not a verdict")
    if not all(isinstance(getattr(verdict, name, ""), str) for name in ("title", "reason")):
        raise TypeError(f"answered {type(verdict).__name__} with a title or reason that is not a text")
    return verdict


class HookRunner:
    """Queue of hook requests, and their outcomes.

    Args:
        registry: Registry with the hooks.
        timeout_s: Seconds that a request may take, from its submission on.

    Attributes:
        fd: Readable once there are outcomes to take.
    """

    def __init__(self, registry: ExtensionRegistry, timeout_s: float) -> None:
        self._registry = registry
        self._timeout_s = timeout_s
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outcomes: deque[HookOutcome] = deque()
        self._abandoned: list[_HookThread] = []
        self._current = self._start_thread()

    def submit(self, effect: RunHooks) -> None:
        """Have the hooks decide about an eval; `take_outcomes` returns the outcome later."""
        self._abandoned = [each for each in self._abandoned if each.thread.is_alive()]
        started_at = self._current.started_at
        if self._current.is_abandoned and not self._current.thread.is_alive():
            self._current = self._start_thread()
        elif started_at is not None and time.monotonic() - started_at > self._timeout_s:
            self._abandon_current()
        if self._current.is_abandoned:
            verdict = Block("too many of them do not come back")
            self._add_outcome(HookOutcome(effect.route, effect.question, verdict, None, ()))
            return
        self._current.requests.put((time.monotonic() + self._timeout_s, effect))

    def take_outcomes(self) -> list[HookOutcome]:
        """Return the outcomes since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        outcomes = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        return outcomes

    def _abandon_current(self) -> None:
        old = self._current
        old.is_abandoned = True
        if len(self._abandoned) >= _MAX_ABANDONED:
            return
        self._abandoned.append(old)
        self._current = self._start_thread()
        while (waiting := old.take_waiting()) is not None:
            self._current.requests.put(waiting)

    def _start_thread(self) -> _HookThread:
        started = _HookThread(self._registry, self._add_outcome)
        size_before = threading.stack_size(_STACK_BYTES)
        try:
            started.thread.start()
        finally:
            threading.stack_size(size_before)
        return started

    def _add_outcome(self, outcome: HookOutcome) -> None:
        self._outcomes.append(outcome)
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Stop running hooks; one that does not return ends with the process."""
        self._current.is_abandoned = True
        self._current.requests.put(None)
        self._current.thread.join(self._timeout_s)


class _HookThread:
    """Thread that runs hooks, and the requests that wait for it.

    Attributes:
        requests: Effects with the monotonic end of their time; None ends the thread.
        started_at: When the request under way began, None between requests.
        is_abandoned: Whether the thread's verdicts are unwanted by now.
    """

    def __init__(self, registry: ExtensionRegistry, add_outcome: Callable[[HookOutcome], None]) -> None:
        self._registry = registry
        self._add_outcome = add_outcome
        self.requests: SimpleQueue[tuple[float, RunHooks] | None] = SimpleQueue()
        self.started_at: float | None = None
        self.is_abandoned = False
        self.thread = threading.Thread(target=self._run, name="hooks", daemon=True)

    def take_waiting(self) -> tuple[float, RunHooks] | None:
        """Return a request that was not begun, and remove it."""
        try:
            return self.requests.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        while not self.is_abandoned and (waiting := self.requests.get()) is not None:
            deadline, effect = waiting
            if time.monotonic() >= deadline:  # the core has blocked it: running hooks would delay the next request
                continue
            self.started_at = time.monotonic()
            verdict, hook, failures = run_hooks(self._registry, effect.question)
            self.started_at = None
            if not self.is_abandoned:
                self._add_outcome(HookOutcome(effect.route, effect.question, verdict, hook, failures))
