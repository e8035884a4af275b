"""Adoption: sessions whose workers were started by the broker before this one.

Such a session waits for its worker, which dials until there is a broker, and tells it which eval counts as sent. The
worker reports whether it has ever got that eval, and sends what was not received: a result, a rollback, a death.
"""

from __future__ import annotations

from replbroker.core.effects import ToWorker
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.scheduling.worker import Worker
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import ADOPTING, BUSY, IDLE, Session
from replbroker.core.state import BrokerState
from replwire.link import AdoptBody, AdoptedBody, FrameKind, Header, HelloBody, encode, pack

_NOT_SAVED = "the journal has lost its start, so whether it ended is unknown"


class Adoption:
    """Sessions that wait for their workers."""

    def __init__(self, state: BrokerState, teardown: SessionTeardown) -> None:
        self._state = state
        self._teardown = teardown
        self._lifecycle = teardown.lifecycle

    def begin(self, session: Session, now: float) -> None:
        """Wait for a session's worker for `worker-adopt-ms`."""
        state = self._state
        session.transition("restore")
        if session.running is not None:
            state.deadlines.cancel(session.running.deadline)
            session.running.deadline = None
        for request in [each for each in session.inflight.values() if each not in session.deferred]:
            request.eval_id = 0  # it is sent again when the worker is back
            session.deferred.append(request)
        when = now + state.limits.worker_adopt_ms / 1000
        session.start_deadline = state.deadlines.call_at(when, lambda at: self._timed_out(session, at))

    def _timed_out(self, session: Session, now: float) -> None:
        cause = f"its worker did not come back within {self._state.limits.worker_adopt_ms} ms"
        self._teardown.lose_worker(session, cause, now)
        self._teardown.pool.refill(now)

    def on_hello(self, worker: Worker, hello: HelloBody, now: float) -> None:
        """Handle that a worker has connected, which a fresh one does before it is assigned."""
        session = worker.session
        if session is None or hello.session is None:
            return
        if hello.session != session.id:
            self._teardown.on_worker_lost(worker, "it came back with another session", now, dead=False)
            return
        if session.state in (IDLE, BUSY):  # the link broke, and not the broker
            self.begin(session, now)
        elif session.state is not ADOPTING:
            return
        if hello.epoch > session.epoch:  # the last records were not written
            session.epoch = hello.epoch
            self._state.changes.touch_session(session)
        for task in (session.running, *session.waiting_evals()):
            if task is not None and task.state is not EvalTask.RUNNING and task.eval_id <= hello.last_eval:
                self._end_unsaved(task, now)
        task = session.running
        sent = AdoptBody(self._state.config.boot_id)
        if task is not None and task.state is EvalTask.RUNNING:
            sent = AdoptBody(self._state.config.boot_id, task.eval_id, task.route)
        frame = pack(FrameKind.ADOPT, encode(sent), epoch=session.epoch)
        self._state.effects.append(ToWorker(worker.number, frame))

    def _end_unsaved(self, task: EvalTask, now: float) -> None:
        """End an eval that the worker has got although no record says so: it must not run twice."""
        status = ["done", "error", "worker-lost"]
        if task is task.session.running:
            self._lifecycle.reply_final(task, status, _NOT_SAVED, now)
            self._lifecycle.finish(task, status, now)
        else:
            self._lifecycle.end_waiting(task, status, _NOT_SAVED, now)

    def on_adopted(self, worker: Worker, header: Header, body: AdoptedBody, now: float) -> None:
        """Handle that a worker goes on with its session; what it has to send again follows."""
        session, state = worker.session, self._state
        if session is None or session.state is not ADOPTING or header.epoch != session.epoch:
            return
        state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        session.transition("adopted")
        state.emitter.emit_session_adopted(session)
        if (rules := state.config.network_rules(session)) is not None:  # those that were allowed for a time are over
            state.effects.append(ToWorker(worker.number, pack(FrameKind.NETWORK, encode(rules), epoch=session.epoch)))
        task = session.running
        if task is None:
            self._lifecycle.advance(session, now)
        elif task.state is EvalTask.RUNNING and not body.unknown:
            self._lifecycle.resume(task, now)
        else:
            self._lifecycle.dispatch(task, now)
        self._teardown.inflight.flush(session, 0)
