"""The outcome of an eval whose reply was lost: it ran, it did not run, or that is unknown. Never a guess."""

from __future__ import annotations

import math
from typing import Final

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import IDEMPOTENCY_KEYS, Holder
from replbroker.core.operations import views
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.state import BrokerState
from replwire import ops as wire

RAN: Final = "ran"
DID_NOT_RUN: Final = "did-not-run"
UNKNOWN: Final = "unknown"


class EvalOutcomes:
    """Looks evals up by their idempotency keys."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def find_eval(self, request: wire.FindEval, peer: Peer, _: bytes, now: float) -> None:
        """Reply with the eval of a key, or whether there can have been one."""
        state = self._state
        holder = Holder(state.access.identity_of(peer), request.agent or "")
        task = state.idempotency.find(holder, request.idempotency_key)
        if task is None:
            outcome = UNKNOWN if self._may_have_had(request, holder, now) else DID_NOT_RUN
            state.reply(peer, request.id, status=["done"], outcome=outcome)
            return
        state.reply(
            peer,
            request.id,
            status=["done"] if task.state is EvalTask.DONE else ["done", "running"],
            outcome=_outcome(task),
            session=task.session.id,
            name=task.session.name,
            eval_id=task.eval_id,
            epoch=task.epoch,
            jobs=[views.job_entry(state, task, now)],
        )

    def _may_have_had(self, request: wire.FindEval, holder: Holder, now: float) -> bool:
        """Return whether the unknown key of an eval may have been known before."""
        state = self._state
        if request.instance not in (state.config.boot_id, *state.earlier_instances):
            return True
        if state.quotas.quota(IDEMPOTENCY_KEYS, holder.identity) == 0:
            return True
        sent_at = -math.inf if request.age_ms is None else now - request.age_ms / 1000
        return state.idempotency.may_have_dropped(holder.identity, sent_at)


def _outcome(task: EvalTask) -> str:
    if task.state is not EvalTask.DONE or task.started_at is not None:
        return RAN
    return UNKNOWN if "worker-lost" in task.status else DID_NOT_RUN  # a lost worker may have begun it
