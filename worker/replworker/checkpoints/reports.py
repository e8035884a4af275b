"""Reports of automatic checkpoints to the broker: at most one a second, however many are taken."""

from __future__ import annotations

import math

from replwire.deadlines import Deadline, Deadlines
from replwire.link import CheckpointedBody, FrameKind, encode
from replworker.checkpoints.tree import CheckpointTree
from replworker.reply_sender import ReplySender

_PAUSE_S = 1.0


class CheckpointReports:
    """Reports the newest automatic checkpoint of one session, and how many there were since the last report."""

    def __init__(self, tree: CheckpointTree, replies: ReplySender, timers: Deadlines) -> None:
        self._tree = tree
        self._replies = replies
        self._timers = timers
        self._timer: Deadline | None = None
        self._last = -math.inf
        self._count = 0

    def add(self, now: float) -> None:
        """Report a checkpoint that was taken, now or with the next ones."""
        self._count += 1
        if self._timer is None:
            self._timer = self._timers.call_at(max(now, self._last + _PAUSE_S), self._send)

    def _send(self, now: float) -> None:
        newest = max((each for each in self._tree if each.automatic), key=lambda each: each.number, default=None)
        count, self._count = self._count, 0
        self._timer, self._last = None, now
        if newest is not None:
            body = CheckpointedBody(newest.number, newest.eval_id, count)
            self._replies.send_control(FrameKind.CHECKPOINTED, encode(body))
