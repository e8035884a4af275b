"""Operations about evals and what else takes its turn in a session."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import Holder
from replbroker.core.operations import views
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import EvalTask, Session, WorkerRequest
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import split_reference

_encode = msgspec.json.Encoder().encode


class EvalOps:
    """Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalScheduler, opening: SessionFactory, asking: QueryOps) -> None:
        self._state = state
        self._evals = evals
        self._opening = opening
        self._asking = asking

    def eval(self, request: wire.Eval, peer: Peer, body: bytes, now: float) -> None:
        state = self._state
        if request.code is None:
            raise RequestError("missing-code", "eval requires code")
        if state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if (key := self._idempotency_key(request, peer)) is not None:
            job = state.idempotency.get(*key)
            if job is not None:
                self._answer_repeat(job, request, peer, now)
                return
        found = state.lookup.find(request, peer)
        if found is None and request.session is not None and not self._may_open(request, peer):
            raise state.lookup.not_found(request, peer)
        epoch = self._epoch(found, request, peer)
        if request.expect_epoch is not None and request.expect_epoch != epoch:
            err = f"session {request.session or '(throw-away)'} is in epoch {epoch}, not {request.expect_epoch}"
            raise RequestError("epoch-conflict", err, epoch=epoch)
        session = found or self._opening.create(
            None if request.session is None else split_reference(request.session)[1],
            self._opening.worker_spec(request.runtime, peer),
            request,
            peer,
            now,
            request.cwd,
            request.env,
            ephemeral=request.session is None,
        )
        if found is not None:
            self._greet(found, request, peer)
        opened = found is None and not session.ephemeral
        self._submit(session, request, peer, body, opened, now)

    def _greet(self, session: Session, request: wire.Eval, peer: Peer) -> None:
        """Tell of a session that is there already what its user may take otherwise."""
        greetings = self._state.greetings
        first = greetings.is_first(peer) and not session.ephemeral
        notices = (
            greetings.directory_notice(peer, session, request.cwd),
            *self._opening.find_mismatches(session, request),
        )
        notice = "; ".join(filter(None, notices)) or None
        if first:
            self._state.reply(
                peer, request.id, session=session.id, name=session.name, cwd=session.directory, notice=notice
            )
        elif notice is not None:
            self._state.reply(peer, request.id, notice=notice)

    def _epoch(self, found: Session | None, request: wire.Eval, peer: Peer) -> int:
        """The epoch that the eval would run in."""
        if found is not None:
            return found.epoch
        if request.session is None:
            return 1
        state = self._state
        return state.records.next_epoch(state.lookup.key(request.session, request, state.access.identity_of(peer)))

    def _may_open(self, request: wire.Eval, peer: Peer) -> bool:
        """Whether the eval may open the session that it does not find: never one of another owner."""
        owner, _ = split_reference(request.session or "")
        return request.if_missing == "create" and owner in (None, self._state.access.identity_of(peer))

    def _idempotency_key(self, request: wire.Eval, peer: Peer) -> tuple[Holder, str, str, str] | None:
        """The eval's key, of this identity and agent, and what it is good for: one session, one code."""
        if request.idempotency_key is None:
            return None
        holder = self._state.holder(request, peer)
        where = (
            "" if request.session is None else repr(self._state.lookup.key(request.session, request, holder.identity))
        )
        return holder, request.idempotency_key, where, request.code or ""

    def _submit(self, session: Session, request: wire.Eval, peer: Peer, body: bytes, opened: bool, now: float) -> None:
        state = self._state
        if opened:
            state.greetings.is_first(peer)
            state.reply(
                peer,
                request.id,
                created=True,
                session=session.id,
                name=session.name,
                cwd=session.directory,
                epoch=session.epoch,
                cause=session.lost_cause,
            )
        try:
            job = self._evals.submit(session, request, peer, body, now)
        except RequestError:
            if opened or (session.ephemeral and not session.is_occupied):
                self._evals.close(session, "its first eval was refused", now, asked=True)
            raise
        if (key := self._idempotency_key(request, peer)) is not None:
            state.idempotency.put(*key, job)

    def _answer_repeat(self, job: EvalTask, request: wire.Eval, peer: Peer, now: float) -> None:
        """The key was used: its one eval answers again, from the start, as `read` would."""
        if self._state.sessions.find_by_id(job.session.id) is None:
            err = f"the key's eval ended ({' '.join(job.status)}) and its session is gone"
            raise RequestError("eval-not-found", err, eval_id=job.eval_id)
        longest = self._state.limits.max_wait_ms
        wait_ms = longest if request.wait_ms is None else min(request.wait_ms, longest)
        again = wire.Read(id=request.id, op="read", session=job.session.id, eval_id=job.eval_id, wait_ms=wait_ms)
        self.read(again, peer, _encode(again), now)

    def submit_request(self, request: wire.QueuedRequest, peer: Peer, body: bytes, now: float) -> None:
        """What is no code of the request's, and takes its turn all the same: a file, packages."""
        if self._state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if request.session is not None:
            session = self._state.lookup.get(request, peer)
        else:
            session = self._opening.create(
                None, self._opening.worker_spec(None, peer), request, peer, now, ephemeral=True
            )
        try:
            self._evals.submit(session, request, peer, body, now)
        except RequestError:
            if session.ephemeral and not session.is_occupied:
                self._evals.close(session, "its first eval was refused", now, asked=True)
            raise

    def read(self, request: wire.Read, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.lookup.get(request, peer)
        job = session.find_eval(request.eval_id) if request.eval_id else None
        if request.eval_id:
            self._check_readable(session, job, request)
        ask = self._asking.create_request(session, peer, request, body)
        ask.eval_id = request.eval_id
        ask.wait_ms = min(request.wait_ms, self._state.limits.max_wait_ms)
        if job is None or job.state in (EvalTask.RUNNING, EvalTask.DONE):
            self._asking.send_or_defer(ask, now)
        else:
            session.deferred.append(ask)
            when = now + ask.wait_ms / 1000
            ask.deadline = self._state.deadlines.call_at(when, lambda at: self._wait_timed_out(ask, job, at))

    def _check_readable(self, session: Session, job: EvalTask | None, request: wire.Read) -> None:
        if job is None:
            raise RequestError("eval-not-found", f"no eval {request.eval_id} in session {session.label}")
        if job.state is EvalTask.DONE and (job.epoch != session.epoch or session.worker is None):
            how = f"ended ({' '.join(job.status)})"
            err = f"eval {job.eval_id} {how}; its output went with the worker of epoch {job.epoch}"
            raise RequestError("eval-not-found", err, eval_id=job.eval_id, epoch=session.epoch)

    def _wait_timed_out(self, ask: WorkerRequest, job: EvalTask, now: float) -> None:
        self._evals.on_request_finished(ask, now)
        self._state.reply(
            ask.peer,
            ask.request_id,
            status=["done", "running"],
            eval_id=job.eval_id,
            epoch=job.session.epoch,
            queue_position=self._evals.position(job),
        )

    def interrupt(self, request: wire.Interrupt, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.request_id is not None:
            job = state.by_request.get((peer, request.request_id))
            targets = [job] if job is not None else []
        else:
            if request.session is None:
                raise RequestError("invalid-request", "interrupt requires a non-empty string session field")
            targets = self._interrupt_targets(state.lookup.get(request, peer), request)
        labels = list(dict.fromkeys(job.session.label for job in targets))
        running = next((job.eval_id for job in targets if job.state is not EvalTask.QUEUED), None)
        for job in targets:
            self._evals.interrupt(job, request.agent or "a client", now)
        reply = {"interrupted": labels, "interrupted_id": running if running or not targets else targets[0].eval_id}
        state.reply(peer, request.id, status=["done"], **reply)

    @staticmethod
    def _interrupt_targets(session: Session, request: wire.Interrupt) -> list[EvalTask]:
        """Waiting ones first: a slot must not go to an eval that is to be interrupted as well."""
        alive = session.waiting_evals()[::-1] + ([session.running] if session.running else [])
        if request.interrupt_id is not None:
            return [job for job in alive if job.eval_id == request.interrupt_id]
        return alive if request.all else alive[-1:] if session.running else []

    def jobs(self, request: wire.Jobs, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        session = state.lookup.get(request, peer)
        entries = [views.job_entry(state, job, now) for job in session.evals]
        state.reply(peer, request.id, status=["done"], session=session.id, name=session.name, jobs=entries)

    def history(self, request: wire.History, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        session = state.lookup.get(request, peer)
        kept = [one for one in session.history if request.grep is None or request.grep in one.code]
        shown = kept[-request.limit :] if request.limit else kept
        entries = [views.history_entry(state, one, now) for one in shown]
        state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, history=entries, count=len(kept)
        )
