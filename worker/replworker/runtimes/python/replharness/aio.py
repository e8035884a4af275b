"""Top-level await: one event loop per session, running only while an eval awaits."""

from __future__ import annotations

import os

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from contextvars import Context
    from types import CodeType, FrameType
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .interrupts import Interrupts

__builtins__ = SEALED

CO_COROUTINE = 0x80


class Awaiting:
    """Runs code objects of which at least one awaits. Remaining tasks continue with the next such eval."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: Optional[AbstractEventLoop] = None
        self._task: Optional[Task[Any]] = None
        self._context: Optional[Context] = None
        self._copy_context: Callable[[], Optional[Context]] = lambda: None
        self._cancelled = False
        self._internal: str = ""

    def run(self, codes: List[CodeType], namespace: Dict[str, Any]) -> Any:
        """Return the last code object's value. An interrupt cancels the main task and keeps the loop usable."""
        asyncio, self._copy_context = self._interrupts.uninterrupted(_imports)
        self._internal = os.path.dirname(asyncio.__file__) + os.sep
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            loop = self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._cancelled = False
        self._task = loop.create_task(self._main(codes, namespace))
        self._interrupts.divert(self._take_interrupt)
        try:
            return loop.run_until_complete(self._task)
        except KeyboardInterrupt:
            self._settle(loop, self._task)
            raise
        except asyncio.CancelledError as exc:
            if not self._cancelled:
                raise
            raise KeyboardInterrupt().with_traceback(exc.__traceback__) from None
        except SystemExit:
            self._settle(loop, self._task)
            raise
        finally:
            self._interrupts.divert(None)
            self._task = None
            self._keep_context()

    def fds(self) -> Tuple[int, ...]:
        """Return the event loop's own descriptors."""
        loop: Any = self._loop
        try:
            return (loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno())
        except Exception:  # there is none, or another implementation
            return ()

    def revive(self) -> None:
        """Give the event loop descriptors of its own in a process started from a copy; its tasks stay."""
        loop: Any = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            import selectors

            loop._selector.close()
            loop._selector = selectors.DefaultSelector()
            loop._ssock.close()
            loop._csock.close()
            loop._internal_fds -= 1
            loop._make_self_pipe()
        except Exception:  # another implementation of loops: the next eval that awaits makes a new one
            self._loop = None

    async def _main(self, codes: List[CodeType], namespace: Dict[str, Any]) -> Any:
        try:
            value = None
            for code in codes:
                value = eval(code, namespace)
                if code.co_flags & CO_COROUTINE:
                    value = await value
            return value
        finally:
            self._context = self._copy_context()

    def _settle(self, loop: AbstractEventLoop, task: Task[Any]) -> None:
        """Let the main task handle its cancellation, and retrieve its exception to avoid a warning later."""
        self._cancelled = True  # the next interrupt is raised directly: the task may refuse to end
        try:
            if not task.done():
                task.cancel()
                loop.run_until_complete(task)
            elif not task.cancelled():
                task.exception()
        except BaseException:
            pass

    def _keep_context(self) -> None:
        """Keep context variables that the task set, as without await."""
        after, self._context = self._context, None
        if after is not None:
            missing = object()
            for variable, value in after.items():
                if variable.get(missing) is not value:
                    variable.set(value)

    def _take_interrupt(self, frame: FrameType) -> bool:
        """Cancel instead of raising in the loop's own code, where an exception could lose a callback."""
        if self._cancelled or self._task is None or self._loop is None:
            return False
        name = frame.f_code.co_filename
        if not (name.startswith(self._internal) or name.endswith(os.sep + "selectors.py")):
            return False
        self._cancelled = True
        self._task.cancel()
        self._loop.call_soon_threadsafe(_wake)  # the signal alone does not end the loop's select()
        return True


def _imports() -> Any:
    import asyncio
    from contextvars import copy_context

    return asyncio, copy_context


def _wake() -> None:
    """Do nothing; the call itself wakes the loop."""
