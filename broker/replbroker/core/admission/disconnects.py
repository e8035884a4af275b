"""Disconnects: requests whose result nobody can read any more are ended; everything else goes on."""

from __future__ import annotations

from functools import partial

from replbroker.core.effects import Peer
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.state import BrokerState


def detach_peer(state: BrokerState, teardown: SessionTeardown, peer: Peer) -> None:
    """Let everything that a peer waits for go on without it."""
    for target in state.routes.values():
        if target.peer == peer:
            if isinstance(target, EvalTask):
                teardown.lifecycle.detach_client(target)
            target.peer = None
    replacements = [session.replacement for session in state.sessions if session.replacement is not None]
    for session in [*state.sessions, *replacements]:
        for waiter in session.waiters:
            if waiter.peer == peer:
                waiter.peer = None
    state.environments.detach_peer(peer)


def end_connection(state: BrokerState, teardown: SessionTeardown, peer: Peer, now: float) -> None:
    """Detach a peer, and end its evals in ephemeral sessions: interrupt running ones, and kill them after the grace."""
    own = [task for (owner, _), task in state.by_request.items() if owner == peer and task.session.ephemeral]
    ending = [task for task in own if not task.is_repeatable and not task.session.inflight]
    detach_peer(state, teardown, peer)
    for task in sorted(ending, key=lambda task: task.state != EvalTask.QUEUED):  # else one might get another's slot
        if task.state is EvalTask.DONE:
            continue
        teardown.lifecycle.interrupt(task, "its client left", now)
        if task.state is EvalTask.RUNNING:
            state.deadlines.cancel(task.deadline)
            grace = state.limits.interrupt_grace_ms / 1000
            end = partial(teardown.close, task.session, "its client left", asked=True)
            task.deadline = state.deadlines.call_at(now + grace, end)
