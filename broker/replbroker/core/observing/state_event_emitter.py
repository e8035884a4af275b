"""Events about a session's state as a whole: copied, branched, saved, hibernated, kept and restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replbroker.core.observing.event_bus import EventBus
from replbroker.core.observing.metrics import Metrics
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import Session
from replwire import events
from replwire.link import AssignedBody, BranchedBody, CheckpointedBody, HibernatedState, RolledBackBody, SnapshotBody
from replwire.replies import SkippedName
from replwire.snapshot_file import SnapshotHeader

_MAX_NAMES = 100  # in one event


class StateEventEmitter:
    """Emits these events on the bus, and counts them in the metrics."""

    def __init__(self, bus: EventBus, metrics: Metrics) -> None:
        self._bus = bus
        self.metrics = metrics

    def emit_session_forked(self, session: Session, source: Session, snapshot: SnapshotBody) -> None:
        """Emit that a session begins with the variables of another."""
        facts: dict[str, Any] = {"source": source.id, "count": snapshot.count, "skipped": _names(snapshot.skipped)}
        self._bus.emit(events.SessionForked, session, **facts)

    def emit_session_saved(self, task: EvalTask, count: int, size: int) -> None:
        """Emit that a snapshot of a session was written, for a client to fetch."""
        self._bus.emit(
            events.SessionSaved, task.session, eval=task.eval_id, agent=task.agent_label, count=count, bytes=size
        )

    def emit_session_restored(self, session: Session, header: SnapshotHeader) -> None:
        """Emit that a session begins with the variables of a saved one."""
        self._bus.emit(
            events.SessionRestored,
            session,
            source=header.session,
            saved_at=header.saved_at,
            count=header.count,
            skipped=_names(header.skipped),
        )

    def emit_session_hibernated(self, session: Session, stored: HibernatedState) -> None:
        """Emit that a session's variables are stored, and its worker has ended."""
        self.metrics.hibernations += 1
        facts: dict[str, Any] = {"epoch": session.epoch, "count": stored.count, "bytes": stored.bytes}
        self._bus.emit(events.SessionHibernated, session, skipped=_names(stored.skipped), **facts)

    def emit_session_resumed(self, session: Session, stored: HibernatedState, assigned: AssignedBody) -> None:
        """Emit that a hibernated session has its variables again."""
        skipped = _names([*stored.skipped, *assigned.skipped])
        self._bus.emit(events.SessionResumed, session, epoch=session.epoch, count=assigned.restored, skipped=skipped)

    def emit_session_branched(self, session: Session, source: Session, body: BranchedBody) -> None:
        """Emit that a session begins as a copy of another."""
        self.metrics.branches += 1
        self._bus.emit(events.SessionBranched, session, source=source.id, checkpoint=body.checkpoint, evals=body.evals)

    def emit_session_checkpoint(self, task: EvalTask, number: int, name: str | None) -> None:
        """Emit that a session's state was kept by request."""
        self._bus.emit(
            events.SessionCheckpoint,
            task.session,
            eval=task.eval_id,
            agent=task.agent_label,
            checkpoint=number,
            name=name,
        )

    def emit_auto_checkpoints(self, session: Session, report: CheckpointedBody) -> None:
        """Emit that automatic checkpoints of a session were taken."""
        self._bus.emit(
            events.SessionAutoCheckpoint, session, eval=report.eval, checkpoint=report.checkpoint, count=report.count
        )

    def emit_session_rolled_back(self, session: Session, report: RolledBackBody, cause: str | None) -> None:
        """Emit that a session goes on from a checkpoint: its epoch is over."""
        self.metrics.rollbacks["request" if cause is None else "crash"] += 1
        self._bus.emit(
            events.SessionRolledBack,
            session,
            checkpoint=report.checkpoint,
            name=report.name,
            undone=report.undone,
            redone=report.redone,
            cause=cause,
            epoch=session.epoch,
        )


def _names(skipped: Sequence[SkippedName]) -> list[str]:
    return [each.name for each in skipped][:_MAX_NAMES]
