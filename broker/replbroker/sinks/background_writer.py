"""Background thread for event sinks: the loop hands over batches of events, and the thread may block on them.

When the buffer is full, events are dropped and counted; a sink never blocks the broker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from replbroker.core.effects import PublishEvent

_MAX_PENDING_BYTES = 16 * 1024 * 1024  # between the loop and the thread; events beyond it are dropped
Batch = list[PublishEvent]


class BackgroundWriter:
    """Buffer of events, and the thread that processes them.

    Each counter is changed by one thread alone, so neither waits for the other.

    Args:
        name: Name of the thread.
        process_batch: Called in the thread with each batch. Must not raise.
        finish: Called in the thread once, after the last batch.
        delay_s: How long an event may wait to be handed over, in seconds.
        close_timeout_s: How long `close` waits for the thread, in seconds.

    Attributes:
        lost_events: Events that were dropped.
        due: Monotonic time at which `flush` should be called.
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
        self._queued_bytes = self._processed_bytes = 0  # changed by the loop, and by the thread
        self.lost_events = 0
        self.due: float | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of events that wait."""
        return self._queued_bytes - self._processed_bytes

    def put(self, event: PublishEvent, now: float) -> None:
        """Add an event, in the loop's thread."""
        if self.pending_bytes > _MAX_PENDING_BYTES:
            self.lost_events += 1
            return
        self._batch.append(event)
        self._queued_bytes += len(event.body)
        if self.due is None:
            self.due = now + self._delay_s

    def flush(self, now: float) -> bool:
        """Hand over the batch if it is time; return whether it was."""
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
        batch, self._batch = self._batch, []
        self._queue.put(batch)

    def close(self) -> bool:
        """Let the thread finish; return whether it did in time."""
        self._enqueue_batch()
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(self._close_timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            self._process_batch(batch)
            self._processed_bytes += sum(len(event.body) for event in batch)
        self._finish()
