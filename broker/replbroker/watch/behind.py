"""Work behind the answers: the loop hands bundles of events to one thread, which may wait as long as it likes.

What does not fit between the two is lost and counted: nothing that looks on may stop or slow a broker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from replbroker.core.effects import Happened

_MOST_PENDING = 16 * 1024 * 1024  # bytes between the loop and the thread; what comes beyond it is lost
Bundle = list[Happened]


class Behind:
    """`work` gets the bundles, in the thread, and must not raise; `end` is called there once, after the last.

    `pause_s` is how long an event may wait to be handed over, `patience_s` how long `close` waits for the rest. Each
    counter is changed by one side alone, so neither waits for the other.
    """

    def __init__(
        self, name: str, work: Callable[[Bundle], None], end: Callable[[], None], *, pause_s: float, patience_s: float
    ) -> None:
        self._name = name
        self._work = work
        self._end = end
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._bundle: Bundle = []
        self._queue: queue.SimpleQueue[Bundle | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._taken = self._worked = 0  # bytes, by the loop and by the thread
        self.lost = 0
        self.due: float | None = None

    @property
    def pending(self) -> int:
        """Bytes that wait."""
        return self._taken - self._worked

    def take(self, event: Happened, now: float) -> None:
        """One more, in the loop."""
        if self.pending > _MOST_PENDING:
            self.lost += 1
            return
        self._bundle.append(event)
        self._taken += len(event.body)
        if self.due is None:
            self.due = now + self._pause_s

    def flush(self, now: float) -> bool:
        """Hand over what has come, if it is time; whether it was."""
        if self.due is None or now < self.due:
            return False
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        self.due = None
        if not self._bundle:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        bundle, self._bundle = self._bundle, []
        self._queue.put(bundle)

    def close(self) -> bool:
        """Let the thread finish; whether it has, in time."""
        self._hand_over()
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(self._patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (bundle := self._queue.get()) is not None:
            self._work(bundle)
            self._worked += sum(len(event.body) for event in bundle)
        self._end()
