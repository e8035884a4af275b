"""Hooks before an eval: it waits in its session's queue until they have judged it, and what they do not let run ends.

The hooks themselves are the shell's: the core asks (`RunHooks`), hears a verdict, and blocks what was not judged in
time. A hook that asks for a person's word ends the eval with `approval-needed`; its client asks, and sends the eval
again with the id of the approval, which is good once, for this code, session and identity.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from replbroker.core.effects import Peer, RunHooks
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import CODE_SHOWN, EvalTask, Session
from replbroker.core.state import BrokerState
from replwire.events import PolicyDecision
from replwire.ext.verdicts import Allow, Block, HookRequest, RequireApproval, Verdict
from replwire.faults import clip
from replwire.ops import LoadFile, Queueable
from replwire.replies import Approval

_MAX_APPROVALS = 1000  # that are open at once; the oldest goes


class _OpenApproval(NamedTuple):
    """What a person was asked about."""

    of: bytes
    hooks: frozenset[str]
    until: float


class HookGate:
    """Which evals wait for a verdict, and which approvals are open."""

    def __init__(self, state: BrokerState, evals: EvalScheduler) -> None:
        self._state = state
        self._evals = evals
        self._open: OrderedDict[str, _OpenApproval] = OrderedDict()
        if state.config.has_hooks:
            evals.judge = self.request_verdict

    def request_verdict(self, job: EvalTask, request: Queueable, peer: Peer, now: float) -> None:
        """Have an eval judged that was just taken in."""
        session, state = job.session, self._state
        question = HookRequest(
            op=request.op,
            code=getattr(request, "code", None) or "",
            file=request.file if isinstance(request, LoadFile) else None,
            session=session.id,
            name=session.name,
            ephemeral=session.ephemeral,
            runtime=session.spec.runtime,
            agent=request.agent,
            binding=request.binding,
            identity=state.access.identity_of(peer),
        )
        approved = self._approved(request.approval, question, session, now)
        state.effects.append(RunHooks(job.route, replace(question, approved=approved)))
        job.withheld, job.code = True, ""  # what is not let run may be a secret, and is kept nowhere
        until = now + state.limits.hook_time_ms / 1000
        job.judging = state.deadlines.call_at(until, lambda at: self._timed_out(job, at))

    def _approved(self, approval: str | None, question: HookRequest, session: Session, now: float) -> frozenset[str]:
        """The hooks that were answered with yes. An approval that does not fit is as good as none: they ask again."""
        found = None if approval is None else self._open.pop(approval, None)
        fits = found is not None and found.of == _digest(question, session) and now <= found.until
        return found.hooks if found is not None and fits else frozenset()

    def _timed_out(self, job: EvalTask, now: float) -> None:
        reason = f"no verdict within {self._state.limits.hook_time_ms} ms"
        self._end(job, "hook-blocked", "block", None, reason, now)

    def on_verdict(self, route: int, question: HookRequest, verdict: Verdict, hook: str | None, now: float) -> None:
        """The verdict about an eval; it may have ended meanwhile. `hook` gave it, where it was not all of them."""
        job = self._state.routes.get(route)
        if not isinstance(job, EvalTask) or job.judging is None:
            return
        if isinstance(verdict, Allow):
            self._state.deadlines.cancel(job.judging)
            job.judging = None
            self._record_code(job)
            self._evals.promote(job.session, now)
        elif isinstance(verdict, Block):
            self._end(job, "hook-blocked", "block", hook, verdict.reason, now)
        else:
            approval = self._create_approval(question, job.session, verdict, hook, now)
            self._end(job, "approval-needed", "ask", hook, verdict.reason, now, approval)

    @staticmethod
    def _record_code(job: EvalTask) -> None:
        assert job.request is not None, "it waits, so its request is here"
        code = job.request.summary()
        job.code = code[:CODE_SHOWN]
        if job.request.in_history:
            job.session.add_history(job, code)

    def _create_approval(
        self, question: HookRequest, session: Session, verdict: RequireApproval, hook: str | None, now: float
    ) -> Approval:
        approval = Approval(self._state.config.new_id(), hook or "", clip(verdict.title), clip(verdict.reason))
        until = now + self._state.limits.approval_time_ms / 1000
        self._open[approval.id] = _OpenApproval(_digest(question, session), question.approved | {approval.hook}, until)
        while len(self._open) > _MAX_APPROVALS:
            self._open.popitem(last=False)
        return approval

    def _end(
        self,
        job: EvalTask,
        word: str,
        verdict: str,
        hook: str | None,
        reason: str,
        now: float,
        approval: Approval | None = None,
    ) -> None:
        state, session = self._state, job.session
        state.counts[f"refused.{word}"] += 1
        reason = clip(reason)
        whose = "the hooks gave" if hook is None else f"hook {hook}:"
        hint = None if approval is None else "a person may allow it: the same request with `approval` set to its id"
        state.bus.emit(
            PolicyDecision,
            session,
            eval=job.eval_id,
            agent=job.label,
            verdict=verdict,
            word=word,
            reason=reason,
            count=1,
            hook=hook,
        )
        state.idempotency.forget(job)
        status = ["done", "error", word]
        err = f"{whose} {reason}; the code did not run"
        self._evals.end_waiting(job, status, err, now, state="kept", approval=approval, hint=hint)
        self._evals.advance(session, now)


def _digest(question: HookRequest, session: Session) -> bytes:
    """What an approval is good for."""
    where = None if session.ephemeral else (session.owner, session.label, session.scope)
    parts = (question.op, question.code, question.file, where, question.identity)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
