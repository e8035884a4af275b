"""Operations about evals, and about other requests that take their turn in a session."""

from __future__ import annotations

import msgspec

from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import Holder
from replbroker.core.operations import views
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.operations.session_factory import SessionFactory
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import EvalTask, WorkerRequest
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import split_reference

_encode = msgspec.json.Encoder().encode


class EvalOps:
    """Each method takes the typed request, its sender, its bytes and the moment."""

    def __init__(
        self, state: BrokerState, scheduler: EvalScheduler, factory: SessionFactory, queries: QueryOps
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._factory = factory
        self._queries = queries

    def eval(self, request: wire.Eval, peer: Peer, body: bytes, now: float) -> None:
        """Run code in a session, opening it if the request says so."""
        self.eval_in(self._state.lookup.find(request, peer), request, peer, body, now)

    def eval_in(self, found: Session | None, request: wire.Eval, peer: Peer, body: bytes, now: float) -> None:
        """Run code in the session that the request names, if that was found; see `eval`."""
        state = self._state
        if request.code is None:
            raise RequestError("missing-code", "eval requires code")
        if state.draining:
            raise RequestError("shutdown", "server is shutting down")
        key = None if request.idempotency_key is None else self._idempotency_key(request, peer)
        if key is not None and (earlier := state.idempotency.get(*key)) is not None:
            self._answer_repeat(earlier, request, peer, now)
            return
        if found is None and request.session is not None and not self._may_open(request, peer):
            raise state.lookup.not_found(request, peer)
        if request.expect_epoch is not None:
            self._check_epoch(found, request, peer)
        session = found or self._factory.create(
            None if request.session is None else split_reference(request.session)[1],
            self._factory.worker_spec(request.runtime, peer),
            request,
            peer,
            now,
            request.cwd,
            request.env,
            ephemeral=request.session is None,
        )
        if found is not None:
            self._greet(found, request, peer)
            task = self._scheduler.submit(session, request, peer, body, now)
        else:
            task = self._submit_first(session, request, peer, body, now)
        if key is not None:
            state.idempotency.put(*key, task)

    def _greet(self, session: Session, request: wire.Eval, peer: Peer) -> None:
        """Tell a client what it may not expect of a session that exists already."""
        greetings = self._state.greetings
        first = greetings.is_first(peer) and not session.ephemeral
        notices = self._factory.find_mismatches(session, request)
        if request.cwd is not None and (notice := greetings.directory_notice(peer, session, request.cwd)):
            notices.insert(0, notice)
        if first:
            self._state.reply(
                peer,
                request.id,
                session=session.id,
                name=session.name,
                cwd=session.directory,
                notice="; ".join(notices) or None,
            )
        elif notices:
            self._state.reply(peer, request.id, notice="; ".join(notices))

    def _check_epoch(self, found: Session | None, request: wire.Eval, peer: Peer) -> None:
        """Raise RequestError `epoch-conflict` when the eval would run in another epoch than it expects."""
        epoch = 1
        if found is not None:
            epoch = found.epoch
        elif request.session is not None:
            state = self._state
            key = state.lookup.key(request.session, request, state.access.identity_of(peer))
            epoch = state.records.next_epoch(key)
        if request.expect_epoch != epoch:
            err = f"session {request.session or '(ephemeral)'} is in epoch {epoch}, not {request.expect_epoch}"
            raise RequestError("epoch-conflict", err, epoch=epoch)

    def _may_open(self, request: wire.Eval, peer: Peer) -> bool:
        """Return whether the eval may open the session that it does not find: never one of another owner."""
        owner, _ = split_reference(request.session or "")
        return request.if_missing == "create" and owner in (None, self._state.access.identity_of(peer))

    def _idempotency_key(self, request: wire.Eval, peer: Peer) -> tuple[Holder, str, str, str]:
        """Return the eval's key with its account, and what it is valid for: one session and one code."""
        holder = Holder(self._state.access.identity_of(peer), request.agent or "")  # not of one connection
        where = ""
        if request.session is not None:
            where = repr(self._state.lookup.key(request.session, request, holder.identity))
        return holder, request.idempotency_key or "", where, request.code or ""

    def _submit_first(self, session: Session, request: wire.Eval, peer: Peer, body: bytes, now: float) -> EvalTask:
        """Submit the first eval of a session that was opened for it."""
        state = self._state
        if not session.ephemeral:
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
            return self._scheduler.submit(session, request, peer, body, now)
        except RequestError:
            self._scheduler.teardown.close(session, "its first eval was refused", now, asked=True)
            raise

    def _answer_repeat(self, task: EvalTask, request: wire.Eval, peer: Peer, now: float) -> None:
        """Answer a repeated idempotency key with the output and result of its one eval, as `read` would."""
        if self._state.sessions.find_by_id(task.session.id) is None:
            err = f"the key's eval ended ({' '.join(task.status)}) and its session was closed"
            raise RequestError("eval-not-found", err, eval_id=task.eval_id)
        longest = self._state.limits.max_wait_ms
        wait_ms = longest if request.wait_ms is None else min(request.wait_ms, longest)
        again = wire.Read(id=request.id, op="read", session=task.session.id, eval_id=task.eval_id, wait_ms=wait_ms)
        self.read(again, peer, _encode(again), now)

    def submit_request(self, request: wire.QueuedRequest, peer: Peer, body: bytes, now: float) -> None:
        """Run something other than code that takes its turn in a session: a file, packages."""
        if self._state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if request.session is not None:
            self._scheduler.submit(self._state.lookup.get(request, peer), request, peer, body, now)
            return
        spec = self._factory.worker_spec(None, peer)
        session = self._factory.create(None, spec, request, peer, now, ephemeral=True)
        try:
            self._scheduler.submit(session, request, peer, body, now)
        except RequestError:
            self._scheduler.teardown.close(session, "its first eval was refused", now, asked=True)
            raise

    def read(self, request: wire.Read, peer: Peer, body: bytes, now: float) -> None:
        """Reply with output and result of an eval, now or when it has ended."""
        session = self._state.lookup.get(request, peer)
        task = session.find_eval(request.eval_id) if request.eval_id else None
        if request.eval_id:
            self._check_readable(session, task, request)
        query = self._queries.create_request(session, peer, request, body)
        query.eval_id = request.eval_id
        query.wait_ms = min(request.wait_ms, self._state.limits.max_wait_ms)
        if task is None or task.state in (EvalTask.RUNNING, EvalTask.DONE):
            self._queries.send_or_defer(query, now)
        else:
            session.deferred.append(query)
            when = now + query.wait_ms / 1000
            query.deadline = self._state.deadlines.call_at(when, lambda at: self._wait_timed_out(query, task, at))

    def _check_readable(self, session: Session, task: EvalTask | None, request: wire.Read) -> None:
        if task is None:
            raise RequestError("eval-not-found", f"no eval {request.eval_id} in session {session.label}")
        task.is_unread = False
        if task.state is EvalTask.DONE and (task.epoch < session.results_epoch or session.worker is None):
            how = f"ended ({' '.join(task.status)})"
            err = f"eval {task.eval_id} {how}; its output was lost with the worker of epoch {task.epoch}"
            raise RequestError("eval-not-found", err, eval_id=task.eval_id, epoch=session.epoch)

    def _wait_timed_out(self, query: WorkerRequest, task: EvalTask, now: float) -> None:
        self._scheduler.lifecycle.on_request_finished(query, now)
        self._state.reply(
            query.peer,
            query.request_id,
            status=["done", "running"],
            eval_id=task.eval_id,
            epoch=task.session.epoch,
            queue_position=self._scheduler.queue.position(task),
        )

    def interrupt(self, request: wire.Interrupt, peer: Peer, _: bytes, now: float) -> None:
        """Interrupt evals of a session, or the eval of an earlier request of this client."""
        state = self._state
        if request.request_id is not None:
            task = state.by_request.get((peer, request.request_id))
            targets = [task] if task is not None else []
        else:
            if request.session is None:
                raise RequestError("invalid-request", "interrupt requires a non-empty string session field")
            targets = self._interrupt_targets(state.lookup.get(request, peer), request)
        labels = list(dict.fromkeys(task.session.label for task in targets))
        running = next((task.eval_id for task in targets if task.state is not EvalTask.QUEUED), None)
        for task in targets:
            self._scheduler.lifecycle.interrupt(task, request.agent or "a client", now)
        reply = {"interrupted": labels, "interrupted_id": running if running or not targets else targets[0].eval_id}
        state.reply(peer, request.id, status=["done"], **reply)

    @staticmethod
    def _interrupt_targets(session: Session, request: wire.Interrupt) -> list[EvalTask]:
        """Return waiting evals first: a slot must not go to an eval that is to be interrupted as well."""
        alive = session.waiting_evals()[::-1] + ([session.running] if session.running else [])
        if request.interrupt_id is not None:
            return [task for task in alive if task.eval_id == request.interrupt_id]
        return alive if request.all else alive[-1:] if session.running else []

    def jobs(self, request: wire.Jobs, peer: Peer, _: bytes, now: float) -> None:
        """Reply with the evals of a session."""
        state = self._state
        session = state.lookup.get(request, peer)
        entries = [views.job_entry(state, task, now) for task in session.evals]
        state.reply(peer, request.id, status=["done"], session=session.id, name=session.name, jobs=entries)

    def history(self, request: wire.History, peer: Peer, _: bytes, now: float) -> None:
        """Reply with the code that a session has run."""
        state = self._state
        session = state.lookup.get(request, peer)
        items = [item for item in session.history if request.grep is None or request.grep in item.code]
        shown = items[-request.limit :] if request.limit else items
        entries = [views.history_entry(state, item, now) for item in shown]
        state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, history=entries, count=len(items)
        )
