"""The life of an eval: taken in, queued, given a slot, run, cancelled, ended. One at a time in a session.

First the session's own queue, then a slot at the gate, then the worker. An eval runs in the epoch it was
sent for or not at all: when the worker goes, what was queued behind it ends too, instead of running
without the names it counts on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replbroker.core.asks import Asks
from replbroker.core.effects import Peer, ToWorker
from replbroker.core.gate import SlotRequest
from replbroker.core.outcomes import COUNTED_AS, STATUS_OF
from replbroker.core.quotas import QUEUE, SESSIONS
from replbroker.core.session import CLOSED, IDLE, STARTING, VACANT, Ask, Job, Session, Waiter
from replbroker.core.staff import Staff
from replbroker.core.state import State
from replbroker.core.time_limits import time_limit
from replbroker.core.watch_ops import end_subscriptions
from replwire.faults import Refusal, clip
from replwire.link import Cancel, Claimed, Kind, encode, pack
from replwire.ops import Runs

_NOTICE_S = 0.01  # an eval that waits longer than this is told so: a shorter wait is over before it could be read of


class Evals:
    """All evals and the sessions they run in."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.staff = Staff(state, self.start_failed)
        self.asks = Asks(state)
        # Set by Moves, which stands above: what becomes of a session's stand-in.
        self.moved: Callable[[Session, float], None]
        self.not_moved: Callable[[Session, Refusal], None]
        self.judge: Callable[[Job, Runs, Peer, float], None] | None = None  # set by Judging, where there are hooks

    # --- in ---

    def submit(self, session: Session, request: Runs, peer: Peer, body: bytes, now: float) -> Job:
        """Take an eval in. Raises Refusal: `memory-limit-reached`, or `concurrency-limit-reached` when it would wait
        and may not."""
        state = self._state
        state.memory.check(session.owner)
        time = time_limit(request, state.limits, state.rule(request))
        turn = SlotRequest(state.holder(request, peer), time.ms > state.limits.max_eval_time_ms)
        if session.occupied or self.judge is not None or not state.gate.may_enter(turn):
            state.check_queue(turn.holder)
        job = Job(session, state.next_route(), peer, turn, request, now)
        job.body = body
        job.limit_ms, job.time_hint = time.ms, time.hint
        if time.notice is not None:
            state.say(peer, request.id, notice=time.notice)
        state.routes[job.route] = job
        state.by_request[peer, request.id] = job
        state.touch(session, now)
        session.jobs.append(job)
        session.queue.append(job)
        state.quotas.charge(QUEUE, turn.holder)
        if self.judge is not None:
            self.judge(job, request, peer, now)
        elif request.in_history:
            session.remember(job, request.summary())
        state.news.accepted(job, request)
        self.promote(session, now)
        if job.state is Job.QUEUED:
            self._arm_queue(job, request, now)
        if request.wait_ms is not None:
            when = now + min(request.wait_ms, state.limits.max_wait_ms) / 1000
            job.wait_deadline = state.deadlines.at(when, lambda _: self._wait_over(job))
        return job

    def _arm_queue(self, job: Job, request: Runs, now: float) -> None:
        wait_ms = self._state.limits.max_queue_wait_ms
        if request.timeout_ms is not None and request.wait_ms is None:
            wait_ms = min(wait_ms, request.timeout_ms)
        job.deadline = self._state.deadlines.at(
            now + wait_ms / 1000, lambda at: self._queued_too_long(job, wait_ms, at)
        )
        job.notice = self._state.deadlines.at(now + _NOTICE_S, lambda _: self._say_queued(job))

    def _say_queued(self, job: Job) -> None:
        if job.judging is not None and job.session.running is None and job.session.queue[0] is job:
            return  # it waits for hooks alone, and not for long
        position = job.session.position(job, len(self._state.gate))
        self._state.say(job.peer, job.request_id, status=["queued"], queue_position=position, eval_id=job.eval_id)
        self._state.news.queued(job, position)

    # --- on ---

    def promote(self, session: Session, now: float) -> None:
        """Bring the next eval of the session to the gate, unless hooks are still to judge it."""
        if session.running is not None or session.head is not None or session.stand_in or not session.queue:
            return
        if session.queue[0].judging is not None:
            return
        job = session.queue.popleft()
        if self._state.gate.enter(job.turn, job):
            self.start(job, now)
        else:
            session.head = job

    def start(self, job: Job, now: float) -> None:
        """The eval has a slot."""
        session = job.session
        session.head, session.running = None, job
        self._unqueue(job)
        job.state = Job.STARTING
        if session.state == IDLE:
            self._dispatch(job, now)
        elif session.state == VACANT:
            self.staff.take(session, now)

    def _unqueue(self, job: Job) -> None:
        self._state.quotas.release(QUEUE, job.turn.holder)
        self._state.deadlines.cancel(job.deadline)
        self._state.deadlines.cancel(job.notice)
        job.deadline = job.notice = None

    def _dispatch(self, job: Job, now: float) -> None:
        session, state = job.session, self._state
        session.move("dispatch")
        job.state, job.started = Job.RUNNING, now
        self._send(session, Kind.ASK, job.body or b"", job)
        job.body = None
        job.deadline = state.deadlines.at(now + job.limit_ms / 1000, lambda at: self._time_limit(job, at))
        state.news.started(job, now)
        self.asks.release(session, job.eval_id)

    def _send(self, session: Session, kind: Kind, body: bytes, job: Job) -> None:
        assert session.worker is not None
        frame = pack(kind, body, epoch=session.epoch, eval=job.eval_id, route=job.route)
        self._state.out.append(ToWorker(session.worker, frame))

    def claimed(self, session: Session, claimed: Claimed, now: float) -> None:
        """The worker took the session's folder, environment and snapshot, or could not."""
        if session.state != STARTING:
            return
        if claimed.error is not None:
            word = "invalid-request" if session.restore is None else "clone-failed"
            self.start_failed(session, clip(claimed.error), now, word=word)
            return
        self._state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        session.executable = claimed.executable
        if session.stands_for is not None:
            self.moved(session, now)
            return
        self.staff.drop_snapshot(session)
        session.move("claimed")
        session.claimed_once, session.lost, session.cwd_refused = True, None, claimed.notice is not None
        for waiter in session.waiters:
            self._welcome(waiter, session, claimed)
        session.waiters.clear()
        if session.running is not None:
            if claimed.notice is not None:
                self._state.say(session.running.peer, session.running.request_id, notice=claimed.notice)
            self._dispatch(session.running, now)
        self.asks.release(session, 0)

    def _welcome(self, waiter: Waiter, session: Session, claimed: Claimed) -> None:
        copied: dict[str, Any] = {}
        if waiter.copied is not None:
            left = [*waiter.copied.left_behind, *claimed.left_behind]
            copied = {"count": waiter.copied.count - len(claimed.left_behind), "bytes": waiter.copied.bytes}
            copied |= {"left_behind": left, "new_session": None if waiter.old_words else session.id}
        self._state.say(
            waiter.peer,
            waiter.request_id,
            status=["done"],
            session=session.id,
            name=session.name,
            epoch=session.epoch,
            created=waiter.created,
            state="lost" if waiter.cause or not waiter.created else None,
            cause=waiter.cause,
            cwd=session.directory if waiter.created else None,
            notice=claimed.notice or session.notice,
            trusted=False if waiter.created and not copied else None,
            **copied,
        )

    # --- out ---

    def ended(self, job: Job, outcome: int, now: float) -> None:
        """The worker said the terminal message of a running eval."""
        job.session.move("finish")
        self._finish(job, STATUS_OF[outcome], now)
        self._state.counts[COUNTED_AS[outcome]] += 1

    def _finish(self, job: Job, status: list[str], now: float) -> None:
        """An eval that had a slot is over: the slot goes on, the session's next one comes up."""
        session = job.session
        session.running = None
        self._close_job(job, status, now)
        if session.state is not CLOSED:
            self.go_on(session, now)
        for following in self._state.gate.release(job.turn):
            self.start(following, now)

    def go_on(self, session: Session, now: float) -> None:
        """An eval of the session has ended: its next one comes up, a throw-away session goes with its last one."""
        if session.ephemeral and not session.occupied and not session.asks:
            self.close(session, "throw-away", now)
        else:
            self.promote(session, now)

    def _close_job(self, job: Job, status: list[str], now: float) -> None:
        state = self._state
        for deadline in (job.deadline, job.wait_deadline, job.judging):
            state.deadlines.cancel(deadline)
        state.routes.pop(job.route, None)
        self.detach(job)
        job.state, job.status, job.body, job.request = Job.DONE, status, None, None
        job.session.forget(state.limits.max_history)
        if job.started is not None:
            job.duration = round((now - job.started) * 1000, 3)
        state.news.finished(job)
        for ask in [ask for ask in job.session.held if ask.eval_id == job.eval_id]:
            self.asks.end(ask)
            err = f"eval {job.eval_id} ended ({' '.join(status)}) and never ran"
            state.refuse(ask.peer, ask.request_id, Refusal("eval-not-found", err, eval_id=job.eval_id))
        state.touch(job.session, now)

    def detach(self, job: Job) -> None:
        """Nobody waits for this eval's answer any more; it goes on."""
        if job.peer is not None:
            key = (job.peer, job.request_id)
            if self._state.by_request.get(key) is job:  # else the client used its id again
                del self._state.by_request[key]
            job.peer = None

    def _answer(self, job: Job, status: list[str], err: str | None, now: float, **more: Any) -> None:
        """A terminal message that the broker writes itself, because the worker cannot."""
        session = job.session
        duration = None if job.started is None else round((now - job.started) * 1000, 3)
        self._state.say(
            job.peer,
            job.request_id,
            status=status,
            err=err,
            eval_id=job.eval_id,
            epoch=session.epoch,
            ephemeral=True if session.ephemeral else None,
            duration_ms=duration,
            **more,
        )
        self._state.news.answered(job, err, more.get("cause"), more.get("state"))

    def end_waiting(self, job: Job, status: list[str], err: str | None, now: float, **more: Any) -> None:
        """End an eval that has no slot."""
        session = job.session
        if session.head is job:
            session.head = None
            self._state.gate.leave(job.turn, job)
        else:
            session.queue.remove(job)
        self._unqueue(job)
        self._answer(job, status, err, now, **more)
        self._close_job(job, status, now)

    def _wait_over(self, job: Job) -> None:
        self._state.say(
            job.peer,
            job.request_id,
            status=["done", "running"],
            eval_id=job.eval_id,
            epoch=job.session.epoch,
            session=job.session.id,
            name=job.session.name,
            queue_position=self.position(job),
        )
        self.detach(job)

    def position(self, job: Job) -> int | None:
        """How many evals go before it; None when it has its slot, though its worker may still be starting."""
        return job.session.position(job, len(self._state.gate)) if job.state is Job.QUEUED else None

    def asked(self, ask: Ask, now: float) -> None:
        """A request that the worker answers is over."""
        self.asks.end(ask)
        if ask.session.ephemeral and ask.session.state is not CLOSED:
            self.go_on(ask.session, now)

    # --- cut short ---

    def interrupt(self, job: Job, by: str, now: float) -> None:
        """Cancel one eval on somebody's wish: a waiting one ends at once, a running one is signalled."""
        session = job.session
        self._state.news.interrupting(job, by)
        if job.state is Job.RUNNING:
            job.cancelled = job.cancelled or "interrupt"
            self._send(session, Kind.CANCEL, encode(Cancel()), job)
        elif job.state is Job.STARTING:
            self._answer(job, ["done", "interrupted"], None, now, state="kept")
            self._finish(job, ["done", "interrupted"], now)
        elif job.state is Job.QUEUED:
            self.end_waiting(job, ["done", "interrupted"], None, now, state="kept")
            self.go_on(session, now)

    def _queued_too_long(self, job: Job, wait_ms: int, now: float) -> None:
        session = job.session
        err = f"eval timed out after {wait_ms} ms in the queue and never ran"
        hint = "another eval of the session, or the limit of concurrent evals, held it up"
        self.end_waiting(job, ["done", "error", "timeout"], err, now, state="kept", max_eval_time_ms=wait_ms, hint=hint)
        self.go_on(session, now)

    def _time_limit(self, job: Job, now: float) -> None:
        """The code ran for as long as it may: ask it to stop, and after the grace kill it."""
        if job.cancelled != "timeout":
            job.cancelled = "timeout"
            self._state.news.interrupting(job, "time-limit")
            self._send(job.session, Kind.CANCEL, encode(Cancel(limit_ms=job.limit_ms, hint=job.time_hint)), job)
            grace = self._state.limits.interrupt_grace_ms / 1000
            job.deadline = self._state.deadlines.at(now + grace, lambda at: self._time_limit(job, at))
            return
        cause = f"killed: it ignored the interrupt at its time limit of {job.limit_ms} ms"
        self.lose(job.session, cause, now, timed_out=True)

    def lose(
        self,
        session: Session,
        cause: str,
        now: float,
        *,
        word: str = "worker-lost",
        timed_out: bool = False,
        moving: bool = False,
    ) -> None:
        """The session's worker is dead or is to be: everything that counted on it is answered, the epoch goes up.

        The next eval gets a fresh worker and is told how the last one went, unless somebody has been told.
        """
        state = self._state
        self.staff.dismiss(session)
        if session.state != VACANT:
            session.move("lose")
        state.records.raised(session)
        if not moving:
            state.news.lost(session, cause, word)
        if session.stand_in is not None and not moving:
            self.not_moved(session.stand_in, Refusal("session-reset", f"meanwhile: {cause}", cause=cause))
        told = any(job.peer is not None for job in (session.running, *session.waiting_jobs()) if job)
        session.lost = cause if word == "worker-lost" and not told else None
        err = {"worker-lost": f"worker lost: {cause}", "session-reset": f"session reset: {cause}"}[word]
        for job in session.waiting_jobs() if not moving else ():
            queued = f"{err}; this eval was queued and never ran"
            self.end_waiting(job, ["done", "error", word], queued, now, state="lost", cause=cause)
        self.asks.drop(session, Refusal(word, err, cause=cause, epoch=session.epoch))
        job_running = session.running
        if job_running is None:
            self.go_on(session, now)
            return
        if timed_out:
            status, err = ["done", "error", "timeout"], f"eval timed out after {job_running.limit_ms} ms"
            hint = f"the code did not obey its interrupt within {state.limits.interrupt_grace_ms} ms"
            self._answer(
                job_running,
                status,
                err,
                now,
                state="lost",
                cause=cause,
                hint=hint,
                max_eval_time_ms=job_running.limit_ms,
            )
        else:
            status = ["done", "error", word]
            self._answer(job_running, status, err, now, state="lost", cause=cause)
        state.counts["evals.timeout" if timed_out else "evals.lost"] += 1
        self._finish(job_running, status, now)

    def start_failed(self, session: Session, cause: str, now: float, word: str = "worker-lost") -> None:
        """The session got no worker. One that never had any goes, nothing half-made is left."""
        if word == "worker-lost" and session.spec.environment is not None and not session.claimed_once:
            word = "environment-failed"  # it was asked for by path, and to ask again is of no use
        refusal = Refusal(word, f"session {session.label}: {cause}", cause=cause)
        if session.stands_for is not None:
            err = f"the environment cannot be used, nothing has changed: {cause}"
            self.not_moved(session, Refusal("environment-failed", err, cause=cause))
            self.go_on(session.stands_for, now)
            return
        job = session.running
        self.staff.dismiss(session)
        session.move("lose")
        self.asks.drop(session, refusal)
        status = ["done", "error", word]
        if not session.claimed_once:
            for waiting in session.waiting_jobs():
                queued = f"{refusal.err}; this eval was queued and never ran"
                self.end_waiting(waiting, status, queued, now, state="lost", cause=cause)
        if job is not None:
            self._answer(job, status, refusal.err, now, state="lost", cause=cause)
            self._finish(job, status, now)
        if not session.claimed_once and session.state is not CLOSED:
            self.close(session, f"never started: {cause}", now)

    def close(self, session: Session, why: str, now: float, *, asked: bool = False) -> None:
        """End a session: its processes are killed, its evals are answered, its name is free.

        `asked`: somebody wanted this, so it is no news to the next session of the name.
        """
        state = self._state
        job = session.running
        self.staff.dismiss(session)
        session.move("close")
        state.sessions.remove(session, why, asked=asked)
        state.quotas.release(SESSIONS, session.holder)
        cause = f"the broker that had it ended: {why}" if state.draining else why
        state.records.closed(session, None if asked else cause)
        if session.stand_in is not None:
            gone = Refusal("session-not-found", f"Session not found: {session.label}", cause=why)
            self.not_moved(session.stand_in, gone)
        for waiting in session.waiting_jobs():
            err = f"Session not found: {session.label}"
            self.end_waiting(waiting, ["done", "error", "session-not-found"], err, now, state="lost", cause=why)
        self.asks.drop(session, Refusal("session-not-found", f"Session not found: {session.label}", cause=why))
        if job is not None:
            status = ["done", "interrupted", "session-closed"]
            self._answer(job, status, None, now, state="lost", cause=why)
            self._finish(job, status, now)
        state.news.closed(session, why)
        end_subscriptions(state, state.bus.about(session), ["done", "session-closed"])
        self.staff.refill(now)
