"""Hooks before an eval: it waits in its session's queue for their verdict, and ends if they do not allow it.

The shell runs the hooks: the core asks for that (`RunHooks`), gets a verdict, and blocks an eval without a verdict in
time. A hook that requires approval ends the eval with `approval-needed`. The client asks a person and sends the eval
again with the id of the approval, which is valid once, for this code, session and identity.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from replbroker.core.effects import RunHooks
from replbroker.core.scheduling.eval_lifecycle import EvalLifecycle
from replbroker.core.sessions.eval_task import CODE_SHOWN, EvalTask
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire.events import PolicyDecision
from replwire.ext.verdicts import Allow, Block, HookRequest, RequireApproval, Verdict
from replwire.faults import RequestError, clip
from replwire.ops import AllowHosts, Env, LoadFile, Queueable
from replwire.replies import Approval

_MAX_APPROVALS = 1000  # open at once; the oldest is dropped
_APPROVAL_HINT = "a person can approve it: send the same request with `approval` set to its id"


class _OpenApproval(NamedTuple):
    """A question that a person has not answered yet."""

    digest: bytes
    hooks: frozenset[str]
    until: float


class HookGate:
    """Evals that wait for a verdict, and open approvals."""

    def __init__(self, state: BrokerState, lifecycle: EvalLifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._open: OrderedDict[str, _OpenApproval] = OrderedDict()

    def request_verdict(self, task: EvalTask, request: Queueable, now: float) -> None:
        """Have the hooks run on an eval that was just accepted."""
        session, state = task.session, self._state
        hook_request = _hook_request(session, request, task.slot_request.holder.identity)
        approved = self._approved(request.approval, hook_request, session, now)
        state.effects.append(RunHooks(task.route, replace(hook_request, approved=approved)))
        task.hide_code, task.code = True, ""  # code that is not allowed may be a secret, and is stored nowhere
        until = now + state.limits.hook_time_ms / 1000
        task.hook_deadline = state.deadlines.call_at(until, lambda at: self._timed_out(task, at))

    def require_approval(
        self, session: Session, request: Queueable | AllowHosts, identity: str, setting: str, now: float
    ) -> None:
        """Raise RequestError `approval-needed` unless a person has approved this request.

        Args:
            session: The session of the request.
            request: The request.
            identity: The identity of its sender.
            setting: The setting that requires it.
            now: Seconds, monotonic.
        """
        hook_request = _hook_request(session, request, identity)
        found = None if request.approval is None else self._open.get(request.approval)
        if found is not None and setting in found.hooks and _is_valid(found, hook_request, session, now):
            if isinstance(request, AllowHosts) or not self._state.config.has_hooks:  # else they use it up
                del self._open[request.approval or ""]
            return
        verdict = RequireApproval(request.summary(), f"{setting} = ask")
        approval = self._create_approval(hook_request, session, verdict, setting, now)
        err = f"a person has to approve: {request.summary()} ({setting} = ask)"
        raise RequestError("approval-needed", clip(err), hint=_APPROVAL_HINT, approval=approval)

    def _approved(self, approval: str | None, request: HookRequest, session: Session, now: float) -> frozenset[str]:
        """Return the hooks that a person has overruled. An approval for different code is ignored."""
        found = None if approval is None else self._open.pop(approval, None)
        return found.hooks if found is not None and _is_valid(found, request, session, now) else frozenset()

    def _timed_out(self, task: EvalTask, now: float) -> None:
        reason = f"no verdict within {self._state.limits.hook_time_ms} ms"
        self._end(task, "hook-blocked", "block", None, reason, now)

    def on_verdict(self, route: int, request: HookRequest, verdict: Verdict, hook: str | None, now: float) -> None:
        """Handle the verdict on an eval, which may have ended meanwhile.

        Args:
            route: The eval's route.
            request: The request that the hooks were run on.
            verdict: Their verdict.
            hook: The hook that gave it, or None when it comes from all of them.
            now: Seconds, monotonic.
        """
        task = self._state.routes.get(route)
        if not isinstance(task, EvalTask) or task.hook_deadline is None:
            return
        if isinstance(verdict, Allow):
            self._state.deadlines.cancel(task.hook_deadline)
            task.hook_deadline = None
            self._record_code(task)
            self._state.changes.evals[task] = None
            self._lifecycle.advance(task.session, now)
        elif isinstance(verdict, Block):
            self._end(task, "hook-blocked", "block", hook, verdict.reason, now)
        else:
            approval = self._create_approval(request, task.session, verdict, hook, now)
            self._end(task, "approval-needed", "ask", hook, verdict.reason, now, approval)

    @staticmethod
    def _record_code(task: EvalTask) -> None:
        assert task.request is not None, "a waiting eval has its request"
        code = task.request.summary()
        task.code = code[:CODE_SHOWN]
        if task.request.in_history:
            task.session.add_history(task, code)

    def _create_approval(
        self, request: HookRequest, session: Session, verdict: RequireApproval, hook: str | None, now: float
    ) -> Approval:
        approval = Approval(self._state.config.new_id(), hook or "", clip(verdict.title), clip(verdict.reason))
        until = now + self._state.limits.approval_time_ms / 1000
        hooks = request.approved | {approval.hook}
        self._open[approval.id] = _OpenApproval(_digest(request, session), hooks, until)
        while len(self._open) > _MAX_APPROVALS:
            self._open.popitem(last=False)
        return approval

    def _end(
        self,
        task: EvalTask,
        code: str,
        verdict: str,
        hook: str | None,
        reason: str,
        now: float,
        approval: Approval | None = None,
    ) -> None:
        state, session = self._state, task.session
        state.counts[f"refused.{code}"] += 1
        reason = clip(reason)
        source = "the hooks gave" if hook is None else f"hook {hook}:"
        hint = None if approval is None else _APPROVAL_HINT
        state.bus.emit(
            PolicyDecision,
            session,
            eval=task.eval_id,
            agent=task.agent_label,
            verdict=verdict,
            code=code,
            reason=reason,
            count=1,
            hook=hook,
        )
        state.idempotency.forget(task)
        status = ["done", "error", code]
        err = f"{source} {reason}; the code did not run"
        self._lifecycle.end_waiting(task, status, err, now, state="kept", approval=approval, hint=hint)
        self._lifecycle.advance(session, now)


def _hook_request(session: Session, request: Queueable | AllowHosts, identity: str) -> HookRequest:
    return HookRequest(
        op=request.op,
        code=getattr(request, "code", None) or "",
        file=request.file if isinstance(request, LoadFile) else None,
        session=session.id,
        name=session.name,
        ephemeral=session.ephemeral,
        runtime=session.spec.runtime,
        agent=request.agent,
        binding=request.binding,
        identity=identity,
        command=request.summary() if isinstance(request, Env | AllowHosts) else "",
    )


def _is_valid(found: _OpenApproval, request: HookRequest, session: Session, now: float) -> bool:
    """Return whether an approval is for this request, and still in time."""
    return found.digest == _digest(request, session) and now <= found.until


def _digest(request: HookRequest, session: Session) -> bytes:
    """Return a digest of everything that an approval is valid for."""
    where = None if session.ephemeral else (session.owner, session.label, session.scope)
    parts = (request.op, request.code, request.file, request.command, where, request.identity)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
