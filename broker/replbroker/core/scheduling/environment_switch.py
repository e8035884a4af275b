"""A change of a session's Python environment: a replacement worker starts beside the session and then takes over.

The session keeps its worker until the replacement is ready, so an environment that cannot be used changes nothing.
"""

from __future__ import annotations

from replbroker.core.effects import Peer, WorkerSpec
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.sessions.eval_task import EvalTask, ReadyWaiter
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire


class EnvironmentSwitch:
    """Begins changes of environment and commits them. `SessionTeardown.cancel_replacement` rolls one back."""

    def __init__(self, state: BrokerState, teardown: SessionTeardown) -> None:
        self._state = state
        self._teardown = teardown

    def begin(self, session: Session, spec: WorkerSpec, peer: Peer, request_id: str, now: float) -> None:
        """Start a worker for a session in another environment.

        Args:
            session: A session that is not in use.
            spec: The runtime and environment of the new worker.
            peer: The client to answer.
            request_id: The id of its request.
            now: Seconds, monotonic.
        """
        replacement = Session(session.id, session.name, spec, session.agent, session.limits, now)
        replacement.spec = spec._replace(
            sandbox_overrides=session.spec.sandbox_overrides, workspace=session.spec.workspace
        )
        replacement.cwd_needed, replacement.owner_principal = session.cwd_needed, session.owner_principal
        replacement.cwd, replacement.env, replacement.epoch = session.cwd, session.env, session.epoch + 1
        replacement.more_hosts = session.more_hosts  # the same: it may grow meanwhile
        replacement.replaces, session.replacement = session, replacement
        replacement.waiters.append(ReadyWaiter(peer, request_id, created=None))
        self._teardown.pool.acquire(replacement, now)

    def commit(self, replacement: Session, now: float) -> None:
        """Give the session the worker that is ready in the other environment."""
        session, state = replacement.replaces, self._state
        assert session is not None
        had_worker = self._teardown.leave_worker(session, f"moved to {replacement.spec}")
        session.spec, session.executable = replacement.spec, replacement.executable
        self._teardown.pool.transfer(replacement, session)
        session.replacement = None
        session.transition("take")
        session.transition("assigned")
        session.was_ready = True
        state.changes.touch_session(session)
        state.emitter.emit_session_moved(session)
        result = "lost" if had_worker else "kept"
        for task in session.waiting_evals():
            self._requeue_for_new_epoch(task, result, now)
        for waiter in replacement.waiters:
            state.reply(
                waiter.peer,
                waiter.request_id,
                status=["done"],
                session=session.id,
                name=session.name,
                epoch=session.epoch,
                state=result,
                environment=session.spec.environment,
                executable=session.executable,
            )
        self._teardown.lifecycle.advance(session, now)

    def _requeue_for_new_epoch(self, task: EvalTask, result: str, now: float) -> None:
        """Let an eval that was sent during the change run in the new epoch, unless it demands the old one."""
        session, request = task.session, task.request
        if not isinstance(request, wire.Eval) or request.expect_epoch is None:
            task.epoch = session.epoch
            self._state.changes.evals[task] = None
            return
        self._state.idempotency.forget(task)
        err = f"session {session.label} has moved to epoch {session.epoch}, from {request.expect_epoch}"
        status = ["done", "error", "epoch-conflict"]
        self._teardown.lifecycle.end_waiting(task, status, err, now, state=result)
