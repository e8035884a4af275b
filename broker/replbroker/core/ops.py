"""What the broker does for each operation: one small function an op. `OPS` in replwire says what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core import views
from replbroker.core.effects import Exit, Peer
from replbroker.core.evals import Evals
from replbroker.core.session import CLOSED, VACANT, Ask, Job, Session, Waiter
from replbroker.core.state import State
from replwire import requests as wire
from replwire.faults import Refusal
from replwire.names import name_error

_encode = msgspec.json.Encoder().encode


class Ops:
    """The operations over one state. Each takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: State, evals: Evals) -> None:
        self._state = state
        self._evals = evals
        self.table: dict[type[wire.Request], Callable[[Any, Peer, bytes, float], None]] = {
            wire.Eval: self.eval,
            wire.Read: self.read,
            wire.Interrupt: self.interrupt,
            wire.Stdin: self.ask,
            wire.NewSession: self.new_session,
            wire.LsSessions: self.ls_sessions,
            wire.Close: self.close,
            wire.Reset: self.reset,
            wire.ClearBindings: self.clear_bindings,
            wire.Jobs: self.jobs,
            wire.Info: self.info,
            wire.Describe: self.describe,
            wire.Ping: self.ping,
            wire.Stats: self.stats,
            wire.Shutdown: self.shutdown,
        }

    # --- sessions ---

    def _open(self, name: str | None, request: wire.Eval | wire.NewSession, now: float) -> Session:
        state = self._state
        if state.draining:
            raise Refusal("shutdown", "server is shutting down")
        runtime = request.runtime or state.setup.runtimes[0]
        if runtime not in state.setup.runtimes:
            raise Refusal("runtime-not-allowed", f"no runtime {runtime} here: {', '.join(state.setup.runtimes)}")
        if request.cwd is not None and not request.cwd.startswith("/"):
            raise Refusal("invalid-request", "cwd: must be an absolute path")
        if any("=" not in pair[1:] or "\0" in pair for pair in request.env):
            raise Refusal("invalid-request", "env: each entry is NAME=VALUE")
        if len(state.sessions) >= state.limits.max_sessions:
            raise state.full("session-limit-reached", "max-sessions", "Session limit reached")
        session = Session(state.setup.new_id(), name, runtime, request.agent, now)
        session.cwd, session.env = request.cwd, request.env
        state.sessions.add(session)
        return session

    def new_session(self, request: wire.NewSession, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.name is not None and (why := name_error("session", request.name)) is not None:
            raise Refusal("invalid-request", f'new-session "name": {why}')
        existing = state.sessions.find(request.name) if request.name is not None else None
        if existing is not None:
            if request.if_exists == "error":
                hint = "send `if-exists`: `reuse` to get the one there is"
                raise Refusal("session-already-exists", f"Session already exists: {request.name}", hint=hint)
            state.say(
                peer, request.id, status=["done"], session=existing.id, name=existing.name,
                epoch=existing.epoch, created=False,
            )  # fmt: skip
            return
        session = self._open(request.name, request, now)
        session.waiters.append(Waiter(peer, request.id, created=True))
        self._evals.staff.take(session, now)
        state.roster()

    def reset(self, request: wire.Reset, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.lose(session, f"reset{by}", now, word="session-reset")
        if session.state == CLOSED:  # it was a throw-away one: its eval is over, and so is the session
            self._state.say(peer, request.id, status=["done", "session-closed"], session=session.id)
            return
        session.waiters.append(Waiter(peer, request.id, created=None))
        self._evals.staff.take(session, now)

    def close(self, request: wire.Close, peer: Peer, _: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        by = f" by {request.agent}" if request.agent else ""
        self._evals.close(session, f"closed{by}", now, asked=True)
        self._state.say(peer, request.id, status=["done", "session-closed"], session=session.id, name=session.name)

    def ls_sessions(self, request: wire.LsSessions, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.session is not None:
            state.sessions.get(request.session)  # routing does not depend on the op (REPLy scenario 106)
        entries = [views.session_entry(state, session, now) for session in state.sessions if not session.ephemeral]
        state.say(peer, request.id, status=["done"], sessions=entries)

    # --- evals ---

    def eval(self, request: wire.Eval, peer: Peer, body: bytes, now: float) -> None:
        state = self._state
        if request.code is None:
            raise Refusal("missing-code", "eval requires code")
        if state.draining:
            raise Refusal("shutdown", "server is shutting down")
        agent = request.agent or f"peer {peer.hex()}"
        if request.idempotency_key is not None:
            job = state.keys.seen(agent, request.idempotency_key, request.session, request.code)
            if job is not None:
                self._repeat(job, request, peer, now)
                return
        found = None if request.session is None else state.sessions.find(request.session)
        if found is None and request.session is not None and request.if_missing == "error":
            found = state.sessions.get(request.session)
        epoch = 1 if found is None else found.epoch
        if request.expect_epoch is not None and request.expect_epoch != epoch:
            err = f"session {request.session or '(throw-away)'} is in epoch {epoch}, not {request.expect_epoch}"
            raise Refusal("epoch-conflict", err, epoch=epoch)
        session = found or self._open(request.session, request, now)
        if request.session is None:
            session.ephemeral = True
        opened = found is None and not session.ephemeral
        self._submit(session, request, peer, body, agent, opened, now)

    def _submit(
        self, session: Session, request: wire.Eval, peer: Peer, body: bytes, agent: str, opened: bool, now: float
    ) -> None:
        state = self._state
        if opened:
            state.say(
                peer, request.id, created=True, session=session.id, name=session.name, epoch=session.epoch,
                cause=state.sessions.gone(session.label),
            )  # fmt: skip
        try:
            job = self._evals.submit(session, request, peer, body, agent, now)
        except Refusal:
            if opened or session.ephemeral:
                self._evals.close(session, "its first eval was refused", now, asked=True)
            raise
        if request.idempotency_key is not None:
            state.keys.keep(agent, request.idempotency_key, request.session, request.code or "", job)
        if opened:
            state.roster()

    def _repeat(self, job: Job, request: wire.Eval, peer: Peer, now: float) -> None:
        """The key was used: its one eval answers again, from the start, as `read` would."""
        if self._state.sessions.find(job.session.id) is None:
            err = f"the key's eval ended ({' '.join(job.status)}) and its session is gone"
            raise Refusal("eval-not-found", err, eval_id=job.eval_id)
        longest = self._state.limits.max_wait_ms
        wait_ms = longest if request.wait_ms is None else min(request.wait_ms, longest)
        again = wire.Read(id=request.id, op="read", session=job.session.id, eval_id=job.eval_id, wait_ms=wait_ms)
        self.read(again, peer, _encode(again), now)

    def read(self, request: wire.Read, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        job = session.find(request.eval_id) if request.eval_id else None
        if request.eval_id:
            self._check_readable(session, job, request)
        ask = self._new_ask(session, peer, request, body)
        ask.eval_id = request.eval_id
        ask.wait_ms = min(request.wait_ms, self._state.limits.max_wait_ms)
        if job is None or job.state in (Job.RUNNING, Job.DONE):
            self._post(ask, now)
        else:
            session.held.append(ask)
            when = now + ask.wait_ms / 1000
            ask.deadline = self._state.deadlines.at(when, lambda _: self._still_queued(ask, job))

    def _check_readable(self, session: Session, job: Job | None, request: wire.Read) -> None:
        if job is None:
            raise Refusal("eval-not-found", f"no eval {request.eval_id} in session {session.label}")
        if job.state is Job.DONE and (job.epoch != session.epoch or session.worker is None):
            how = f"ended ({' '.join(job.status)})"
            err = f"eval {job.eval_id} {how}; its output went with the worker of epoch {job.epoch}"
            raise Refusal("eval-not-found", err, eval_id=job.eval_id, epoch=session.epoch)

    def _still_queued(self, ask: Ask, job: Job) -> None:
        self._evals.asks.end(ask)
        self._state.say(
            ask.peer, ask.request_id, status=["done", "running"], eval_id=job.eval_id, epoch=job.session.epoch
        )  # fmt: skip

    def interrupt(self, request: wire.Interrupt, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        if request.request_id is not None:
            job = state.by_request.get((peer, request.request_id))
            targets = [job] if job is not None else []
        else:
            if request.session is None:
                raise Refusal("invalid-request", "interrupt requires a non-empty string session field")
            targets = self._interrupt_targets(state.sessions.get(request.session), request)
        labels = list(dict.fromkeys(job.session.label for job in targets))
        running = next((job.eval_id for job in targets if job.state is not Job.QUEUED), None)
        for job in targets:
            self._evals.interrupt(job, now)
        reply = {"interrupted": labels, "interrupted_id": running if running or not targets else targets[0].eval_id}
        state.say(peer, request.id, status=["done"], **reply)

    @staticmethod
    def _interrupt_targets(session: Session, request: wire.Interrupt) -> list[Job]:
        """Waiting ones first: a slot must not go to an eval that is to be interrupted as well."""
        alive = session.waiting_jobs()[::-1] + ([session.running] if session.running else [])
        if request.interrupt_id is not None:
            return [job for job in alive if job.eval_id == request.interrupt_id]
        return alive if request.all else alive[-1:] if session.running else []

    def jobs(self, request: wire.Jobs, peer: Peer, _: bytes, now: float) -> None:
        state = self._state
        session = state.sessions.get(request.session)
        entries = [views.job_entry(state, job, now) for job in session.jobs]
        state.say(peer, request.id, status=["done"], session=session.id, name=session.name, jobs=entries)

    # --- what the worker answers ---

    def _new_ask(self, session: Session, peer: Peer, request: wire.Request, body: bytes) -> Ask:
        state = self._state
        if len(session.asks) >= state.limits.max_waiting_reads:
            raise state.full("concurrency-limit-reached", "max-waiting-reads", "Too many requests wait in this session")
        ask = Ask(session, state.next_route(), peer, request.id, request.op, body)
        session.asks[ask.route] = ask
        state.routes[ask.route] = ask
        return ask

    def _post(self, ask: Ask, now: float) -> None:
        """Send it, or hold it until the session has its worker."""
        session, state = ask.session, self._state
        when = now + (ask.wait_ms + state.limits.ask_timeout_ms) / 1000
        ask.deadline = state.deadlines.at(when, lambda _: self._unanswered(ask))
        if session.claimed_once and session.worker is not None and session.start_deadline is None:
            self._evals.asks.forward(ask)
            return
        ask.eval_id = 0
        session.held.append(ask)
        if session.state == VACANT:
            self._evals.staff.take(session, now)

    def _unanswered(self, ask: Ask) -> None:
        self._evals.asks.end(ask)
        ms = ask.wait_ms + self._state.limits.ask_timeout_ms
        self._state.refuse(ask.peer, ask.request_id, Refusal("timeout", f"{ask.op}: no answer within {ms} ms"))

    def ask(self, request: wire.SessionRequest, peer: Peer, body: bytes, now: float) -> None:
        """An operation that is the worker's alone: its answer goes back untouched."""
        session = self._state.sessions.get(request.session)
        self._state.touch(session, now)
        self._post(self._new_ask(session, peer, request, body), now)

    def clear_bindings(self, request: wire.ClearBindings, peer: Peer, body: bytes, now: float) -> None:
        session = self._state.sessions.get(request.session)
        if session.occupied:
            raise Refusal("busy", f"session {session.label} runs an eval: interrupt it or wait")
        self.ask(request, peer, body, now)

    def info(self, request: wire.Info, peer: Peer, _: bytes, now: float) -> None:
        """The worker completes what the broker knows. A session without a worker gets none for this."""
        state = self._state
        session = state.sessions.get(request.session)
        base = views.info(state, session, now)
        if session.worker is None or session.start_deadline is not None:
            state.say(peer, request.id, status=["done"], info=base | {"pid": None, "variables": None})
            return
        ask = self._new_ask(session, peer, request, b"")
        ask.body = _encode({"id": request.id, "op": "info", "variables": request.variables, "base": base})
        self._post(ask, now)

    # --- the broker ---

    def describe(self, request: wire.Describe, peer: Peer, _: bytes, __: float) -> None:
        self._state.say(
            peer, request.id, status=["done"], ops=wire.describe_ops(), limits=msgspec.to_builtins(self._state.limits),
            versions=dict(self._state.setup.versions), encodings_available=["json"], encoding_current="json",
        )  # fmt: skip

    def ping(self, request: wire.Ping, peer: Peer, _: bytes, __: float) -> None:
        self._state.say(peer, request.id, status=["done", "pong"])

    def stats(self, request: wire.Stats, peer: Peer, _: bytes, now: float) -> None:
        stats = views.stats(self._state, self._evals.staff, now)
        self._state.say(peer, request.id, status=["done"], stats=stats)

    def shutdown(self, request: wire.Shutdown, peer: Peer, _: bytes, now: float) -> None:
        self._state.say(peer, request.id, status=["done", "shutdown-started"])
        self.drain(f"shutdown asked by {request.agent or 'a client'}", now)

    def drain(self, why: str, now: float) -> None:
        """Take nothing new; end when the last eval has, or when the close grace is over."""
        state = self._state
        if state.draining:
            return
        state.draining = True
        state.note(why)
        refusal = Refusal("shutdown", "server is shutting down")
        for session in state.sessions:
            for job in session.waiting_jobs():
                self._evals.end_waiting(job, ["done", "error", "shutdown"], refusal.err, now, state="lost")
        grace = state.limits.close_grace_ms / 1000
        state.drain_deadline = state.deadlines.at(now + grace, lambda at: self.finish_drain(why, at))

    def finish_drain(self, why: str, now: float) -> None:
        """Answer whoever still waits, and go."""
        state = self._state
        state.deadlines.cancel(state.drain_deadline)
        state.drain_deadline = None
        for session in state.sessions:
            self._evals.close(session, why, now)
        state.out.append(Exit(why))
