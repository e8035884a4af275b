"""The end of a connection: what was asked over it and can be read by nobody any more ends, all else goes on."""

from __future__ import annotations

from functools import partial

from replbroker.core.effects import Peer
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import EvalTask
from replbroker.core.state import BrokerState


def detach_peer(state: BrokerState, evals: EvalScheduler, peer: Peer) -> None:
    """Nobody is there to be told: what goes on, goes on for whoever reads it later."""
    for target in state.routes.values():
        if target.peer == peer:
            if isinstance(target, EvalTask):
                evals.detach_client(target)
            target.peer = None
    stand_ins = [session.replacement for session in state.sessions if session.replacement is not None]
    for session in [*state.sessions, *stand_ins]:
        for waiter in session.waiters:
            if waiter.peer == peer:
                waiter.peer = None
    state.environments.detach_peer(peer)


def end_connection(state: BrokerState, evals: EvalScheduler, peer: Peer, now: float) -> None:
    """Forget it, and end its evals without a session. One that runs is interrupted, and killed after the grace."""
    asked = [job for (whose, _), job in state.by_request.items() if whose == peer and job.session.ephemeral]
    ending = [job for job in asked if not job.repeatable and not job.session.inflight]
    detach_peer(state, evals, peer)
    for job in sorted(ending, key=lambda job: job.state != EvalTask.QUEUED):  # else one might get another's slot
        if job.state is EvalTask.DONE:
            continue
        evals.interrupt(job, "its client left", now)
        if job.state is EvalTask.RUNNING:
            state.deadlines.cancel(job.deadline)
            grace = state.limits.interrupt_grace_ms / 1000
            end = partial(evals.close, job.session, "its client left", asked=True)
            job.deadline = state.deadlines.call_at(now + grace, end)
