"""The change log: which sessions and evals a call has changed, as records that are saved before its effects.

A record is made at the end of the call, so several changes in one call are one record, and all records one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replbroker.core.clock import CoreClock
from replbroker.core.records import (
    EvalProgress,
    Record,
    SavedEval,
    SavedProgress,
    SavedSpec,
    SessionDetails,
    SessionRecord,
)
from replbroker.core.sessions.eval_task import EvalTask

if TYPE_CHECKING:
    from replbroker.core.sessions.session import Session

_MAX_KEPT_EVALS = 200  # finished evals of a session that a rewritten journal keeps


class ChangeLog:
    """The changes of one call.

    Attributes:
        evals: Evals that are saved at the end of the call. One that waits for hooks is not: its code is stored nowhere.
    """

    def __init__(self, clock: CoreClock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._closed: list[SessionRecord] = []
        self.evals: dict[EvalTask, None] = {}

    def touch_session(self, session: Session) -> None:
        """Save an open session at the end of the call."""
        self._sessions[session.id] = session

    def add_closed(self, record: SessionRecord) -> None:
        """Save the record of a session that is open no more, before the sessions that are."""
        self._sessions.pop(record.id, None)
        self._closed.append(record)

    def take(self) -> list[Record]:
        """Return the records of the call, and begin the next."""
        records: list[Record] = []
        if self._closed or self._sessions:
            records += self._closed
            records += map(self.session_record, self._sessions.values())
            self._sessions.clear()
            self._closed.clear()
        if self.evals:
            zero = self._clock.to_unix(0.0)
            for task in self.evals:
                if task.is_saved:
                    records.append(SavedProgress(task.session.id, task.eval_id, _progress(task, zero)))
                elif task.hook_deadline is None and not (task.hide_code and task.state is EvalTask.DONE):
                    task.is_saved = True
                    records.append(_eval_record(task, zero))
            self.evals.clear()
        return records

    # --- records ---

    def session_record(self, session: Session) -> SessionRecord:
        """Return the record of an open session."""
        return SessionRecord(
            owner=session.owner,
            name=session.name,
            scope=session.scope,
            id=session.id,
            epoch=session.epoch,
            open=True,
            details=self._details(session),
        )

    def _details(self, session: Session) -> SessionDetails:
        to_unix, changed = self._clock.to_unix, session.mode != "normal"
        return SessionDetails(
            spec=SavedSpec(*session.spec),
            principal=session.owner_principal,
            created_at=to_unix(session.created_at),
            worker=session.worker if session.has_variables else None,
            worker_epoch=session.worker_epoch if session.has_variables or session.hibernated else 1,
            results_epoch=session.results_epoch if session.has_variables else 1,
            worker_identity=session.worker_identity if session.has_variables else "",
            agent=session.agent,
            max_output_bytes=session.limits.max_output_bytes,
            shares=dict(session.shares),
            offered_to=session.offered_to,
            mode=session.mode,
            mode_since=to_unix(session.mode_since) if changed else 0.0,
            mode_reason=session.mode_reason,
            cwd=session.cwd,
            cwd_needed=session.cwd_needed,
            cwd_unavailable=session.cwd_unavailable,
            env=session.env,
            ephemeral=session.ephemeral,
            eval_count=session.eval_count,
            was_ready=session.was_ready,
            lost_cause=session.lost_cause,
            executable=session.executable,
            snapshot=session.snapshot,
            hibernated=session.hibernated,
            has_packages=session.has_packages,
            packages_of=session.packages_of,
            branch_of=session.branch_of,
        )

    def eval_record(self, task: EvalTask, history: str | None = None) -> SavedEval:
        """Return the record of an eval. `history` is its code where its request is gone."""
        return _eval_record(task, self._clock.to_unix(0.0), history)

    def evals_of(self, session: Session) -> list[SavedEval]:
        """Return the evals of a session that the broker after this one needs: of the finished ones the newest."""
        codes = {item.task: item.code for item in session.history}
        finished = sum(task.state is EvalTask.DONE for task in session.evals)
        records = []
        for task in session.evals:
            if task.state is EvalTask.DONE:
                finished -= 1
                if finished >= _MAX_KEPT_EVALS and task.key is None:
                    continue
            if task.is_saved:
                records.append(self.eval_record(task, codes.get(task)))
        return records


def _eval_record(task: EvalTask, zero: float, history: str | None = None) -> SavedEval:
    """Return the record of an eval; `zero` is the Unix time of monotonic zero."""
    holder, key = task.slot_request.holder, task.key
    return SavedEval(
        session=task.session.id,
        eval_id=task.eval_id,
        route=task.route,
        request_id=task.request_id,
        op=task.op,
        identity=holder.identity,
        holder_agent=holder.agent,
        submitted_at=round(zero + task.submitted_at, 3),
        limit=(task.time_limit.ms, task.time_limit.maximum, task.time_limit.longest_ms),
        progress=_progress(task, zero),
        body=task.body,
        code=task.code if task.body is None else "",
        history=history if task.body is None else None,
        agent=task.agent_label,
        long=task.slot_request.long,
        principal=task.principal,
        key=None if key is None else key.text,
        key_agent="" if key is None else key.holder.agent,
        digest=b"" if key is None else key.digest,
    )


def _progress(task: EvalTask, zero: float) -> EvalProgress:
    return EvalProgress(
        epoch=task.epoch,
        started_at=None if task.started_at is None else round(zero + task.started_at, 3),
        status=task.status,
        duration_ms=task.duration_ms,
        undone=task.undone,
        has_key=task.key is not None,
    )
