"""Hooks before an eval: it waits in its session's queue until they have judged it, and what they do not let run ends.

The hooks themselves are the shell's: the core asks (`Judge`), hears a verdict, and blocks what was not judged in
time. A hook that asks for a person's word ends the eval with `approval-needed`; its client asks, and sends the eval
again with the id of the approval, which is good once, for this code, session and identity.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from replbroker.core.effects import Judge, Peer
from replbroker.core.evals import Evals
from replbroker.core.session import CODE_SHOWN, Job, Session
from replbroker.core.state import State
from replwire.events import PolicyDecision
from replwire.ext.verdicts import Allow, Ask, Block, Question, Verdict
from replwire.faults import clip
from replwire.ops import LoadFile, Runs
from replwire.replies import Approval

_MOST_APPROVALS = 1000  # that are open at once; the oldest goes


class _Open(NamedTuple):
    """What a person was asked about."""

    of: bytes
    hooks: frozenset[str]
    until: float


class Judging:
    """Which evals wait for a verdict, and which approvals are open."""

    def __init__(self, state: State, evals: Evals) -> None:
        self._state = state
        self._evals = evals
        self._open: OrderedDict[str, _Open] = OrderedDict()
        if state.setup.hooks:
            evals.judge = self.ask

    def ask(self, job: Job, request: Runs, peer: Peer, now: float) -> None:
        """Have an eval judged that was just taken in."""
        session, state = job.session, self._state
        question = Question(
            op=request.op,
            code=getattr(request, "code", None) or "",
            file=request.file if isinstance(request, LoadFile) else None,
            session=session.id,
            name=session.name,
            ephemeral=session.ephemeral,
            runtime=session.spec.runtime,
            agent=request.agent,
            binding=request.binding,
            identity=state.access.of(peer),
        )
        approved = self._approved(request.approval, question, session, now)
        state.out.append(Judge(job.route, replace(question, approved=approved)))
        job.withheld, job.code = True, ""  # what is not let run may be a secret, and is kept nowhere
        until = now + state.limits.hook_time_ms / 1000
        job.judging = state.deadlines.at(until, lambda at: self._too_late(job, at))

    def _approved(self, approval: str | None, question: Question, session: Session, now: float) -> frozenset[str]:
        """The hooks that were answered with yes. An approval that does not fit is as good as none: they ask again."""
        found = None if approval is None else self._open.pop(approval, None)
        fits = found is not None and found.of == _digest(question, session) and now <= found.until
        return found.hooks if found is not None and fits else frozenset()

    def _too_late(self, job: Job, now: float) -> None:
        reason = f"no verdict within {self._state.limits.hook_time_ms} ms"
        self._end(job, "hook-blocked", "block", None, reason, now)

    def heard(self, route: int, question: Question, verdict: Verdict, hook: str | None, now: float) -> None:
        """The verdict about an eval; it may have ended meanwhile. `hook` gave it, where it was not all of them."""
        job = self._state.routes.get(route)
        if not isinstance(job, Job) or job.judging is None:
            return
        if isinstance(verdict, Allow):
            self._state.deadlines.cancel(job.judging)
            job.judging = None
            self._remember(job)
            self._evals.promote(job.session, now)
        elif isinstance(verdict, Block):
            self._end(job, "hook-blocked", "block", hook, verdict.reason, now)
        else:
            approval = self._keep(question, job.session, verdict, hook, now)
            self._end(job, "approval-needed", "ask", hook, verdict.reason, now, approval)

    @staticmethod
    def _remember(job: Job) -> None:
        assert job.request is not None, "it waits, so its request is here"
        code = job.request.summary()
        job.code = code[:CODE_SHOWN]
        if job.request.in_history:
            job.session.remember(job, code)

    def _keep(self, question: Question, session: Session, verdict: Ask, hook: str | None, now: float) -> Approval:
        approval = Approval(self._state.setup.new_id(), hook or "", clip(verdict.title), clip(verdict.reason))
        until = now + self._state.limits.approval_time_ms / 1000
        self._open[approval.id] = _Open(_digest(question, session), question.approved | {approval.hook}, until)
        while len(self._open) > _MOST_APPROVALS:
            self._open.popitem(last=False)
        return approval

    def _end(
        self,
        job: Job,
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
        state.bus.tell(
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
        state.keys.drop(job)
        status = ["done", "error", word]
        err = f"{whose} {reason}; the code did not run"
        self._evals.end_waiting(job, status, err, now, state="kept", approval=approval, hint=hint)
        self._evals.go_on(session, now)


def _digest(question: Question, session: Session) -> bytes:
    """What an approval is good for."""
    where = None if session.ephemeral else (session.owner, session.label, session.scope)
    parts = (question.op, question.code, question.file, where, question.identity)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
