"""Work behind the answers: the loop hands bundles of events to one thread, which may wait as long as it likes.

What does not fit between the two is lost and counted: nothing that looks on may stop or slow a broker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from replbroker.core.effects import PublishEvent

_MAX_PENDING_BYTES = 16 * 1024 * 1024  # bytes between the loop and the thread; what comes beyond it is lost
Batch = list[PublishEvent]


class BackgroundWriter:
    """`work` gets the bundles, in the thread, and must not raise; `end` is called there once, after the last.

    `pause_s` is how long an event may wait to be handed over, `patience_s` how long `close` waits for the rest. Each
    counter is changed by one side alone, so neither waits for the other.
    """

    def __init__(
        self,
        name: str,
        process_batch: Callable[[Batch], None],
        finish: Callable[[], None],
        *,
        delay_s: float,
        close_timeout_s: float,
    ) -> None:
        self._name = name
        self._process_batch = process_batch
        self._finish = finish
        self._delay_s = delay_s
        self._close_timeout_s = close_timeout_s
        self._batch: Batch = []
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._queued_bytes = self._processed_bytes = 0  # bytes, by the loop and by the thread
        self.lost_events = 0
        self.due: float | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait."""
        return self._queued_bytes - self._processed_bytes

    def put(self, event: PublishEvent, now: float) -> None:
        """One more, in the loop."""
        if self.pending_bytes > _MAX_PENDING_BYTES:
            self.lost_events += 1
            return
        self._batch.append(event)
        self._queued_bytes += len(event.body)
        if self.due is None:
            self.due = now + self._delay_s

    def flush(self, now: float) -> bool:
        """Hand over what has come, if it is time; whether it was."""
        if self.due is None or now < self.due:
            return False
        self._enqueue_batch()
        return True

    def _enqueue_batch(self) -> None:
        self.due = None
        if not self._batch:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        bundle, self._batch = self._batch, []
        self._queue.put(bundle)

    def close(self) -> bool:
        """Let the thread finish; whether it has, in time."""
        self._enqueue_batch()
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(self._close_timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (bundle := self._queue.get()) is not None:
            self._process_batch(bundle)
            self._processed_bytes += sum(len(event.body) for event in bundle)
        self._finish()
