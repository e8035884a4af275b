"""Model of a broker, fed with events and replies and read by the tables. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from replctl.top.cell_text import one_line
from replctl.top.entities import EvalRow, SessionRow, end_of, shorten_code, unix_time
from replctl.top.formatting import Rate, format_span
from replctl.top.scrollback import Scrollback
from replwire.replies import JobEntry, SessionEntry

MAX_RECENT = 200  # finished evals
MAX_OUTPUTS = 100  # sessions with kept output; that of others is loaded again when shown
_CODE_CHARS = 400  # characters of an eval's code
_JOBS_CHARS = 80  # characters of code in `jobs`
_NOTE_CHARS = 4000  # characters of an eval's value or error in the output

Event = dict[str, Any]


class TopModel:
    """Sessions, evals and figures of a broker.

    Times in events and replies are the broker's; `now` is any monotonic clock.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sessions: dict[str, SessionRow] = {}
        self.active: dict[str, EvalRow] = {}
        self.recent: deque[EvalRow] = deque(maxlen=MAX_RECENT)  # newest first
        self.stats: dict[str, Any] = {}
        self.agent_cpu: dict[str, float] | None = None  # seconds by agent, including exited workers
        self.may_introspect = True  # until the broker denies `introspect`
        self.version = ""
        self.identity = ""
        self.connected = True
        self.warning = ""  # the last refusal or failure
        self.evals = Rate(60)
        self.refusals = Rate(60)
        self.output = Rate(5)
        self.revision = 0
        self._printed_chars = 0
        self._printing: OrderedDict[str, None] = OrderedDict()  # sessions with output, the last to print at the end
        self._clock_offset = 0.0  # the broker's clock minus the local one

    def on_reconnect(self, seconds: float) -> None:
        """Mark everything known as outdated after `seconds` without a connection."""
        self.connected, self.warning = True, ""
        self.revision += 1
        for session in self.sessions.values():
            session.jobs_known = False
            if session.output:
                session.output.note(f"-- disconnected for {format_span(seconds)}: replctl read shows the output", "dim")

    # --- events ---

    def apply_event(self, event: Event, now: float) -> None:
        """Apply an event."""
        self.revision += 1
        kind = event["type"]
        family, _, what = kind.partition("/")
        session = self.sessions.get(event.get("session", ""))
        if kind == "session/created":
            self._on_created(event)
        elif kind == "bus/lagged":
            self._on_lagged(event)
        elif family == "session" and session is not None:
            self._on_session_event(session, what, event)
        elif family == "eval" and session is not None:
            self._on_eval_event(session, what, event, now)
        elif kind in ("admission/refused", "policy/decision"):
            text = event.get("err") or event.get("reason") or event.get("word", "")
            self.warning = f"{event.get('agent') or 'a client'} was refused: {one_line(text)}"
        elif kind == "log/error":
            self.warning = f"internal error of the broker: {one_line(event.get('summary', ''))}"

    def _on_created(self, event: Event) -> None:
        self.sessions[event["session"]] = SessionRow(
            event["session"],
            event.get("name"),
            event.get("runtime", ""),
            "starting",
            event.get("epoch", 1),
            agent=event.get("agent"),
            owner=(owner := event.get("owner", "")),
            is_foreign=self._is_foreign(owner),
            cwd=event.get("cwd"),
            ephemeral=bool(event.get("ephemeral")),
            jobs_known=True,
            output_known=True,
        )

    def _is_foreign(self, owner: str) -> bool:
        return bool(self.identity) and owner != self.identity

    def _on_lagged(self, event: Event) -> None:
        self.warning = f"too many events at once: {event.get('missed', 0)} were missed"
        for session in self.sessions.values():
            session.jobs_known = False
        for key in [key for key, session in self.sessions.items() if session.ephemeral]:
            self._drop(key)  # its end may have been missed, and no list shows it

    def _on_session_event(self, session: SessionRow, what: str, event: Event) -> None:
        if what == "busy":
            session.state = "busy"
        elif what == "idle":
            self._mark_idle(session)
        elif what in ("reset", "lost", "moved"):
            session.epoch = event.get("epoch", session.epoch)
            session.state = "vacant" if what == "lost" else "starting"
            session.running = None
            session.usage.reset()
            session.usage_due = True
            why = one_line(event.get("why") or event.get("reason") or event.get("environment") or "")
            told = {"reset": "reset", "lost": "worker lost", "moved": "moved"}[what]
            style = "yellow" if what == "moved" else "bold red"
            session.output.note(f"-- {told}, epoch {session.epoch}" + (f": {why}" if why else ""), style)
        elif what == "rolled-back":
            session.epoch = event.get("epoch", session.epoch)
            why = one_line(event.get("cause") or "")
            told = f"-- back at checkpoint {event.get('checkpoint')}, epoch {session.epoch}"
            session.output.note(told + (f": {why}" if why else ""), "bold red" if why else "yellow")
        elif what == "closed":
            self._drop(session.id)

    def _mark_idle(self, session: SessionRow) -> None:
        session.state, session.running = "idle", None
        session.usage.set_idle()
        session.usage_due = True

    def _drop(self, key: str) -> None:
        self._printing.pop(key, None)
        if self.sessions.pop(key, None) is not None:
            for job in [job for job in self.active.values() if job.session == key]:
                del self.active[job.key]

    def _on_eval_event(self, session: SessionRow, what: str, event: Event, now: float) -> None:
        key = f"{session.id}:{event['eval']}"
        if what == "accepted":
            code = shorten_code(event.get("code", ""), _CODE_CHARS)
            taken = EvalRow(session.id, event["eval"], session.label, code, event.get("agent"))
            taken.submitted, self.active[key] = unix_time(event["time"]), taken
            session.evals = max(session.evals, event["eval"])
            return
        job = self.active.get(key)
        if what in ("started", "finished") and job is None:  # accepted before the subscription
            if (late := self._find_ended(key)) is not None:  # a reply already reported its end
                self._note_begin(session, late)
                if what == "finished":
                    self._note_end(session, late, event)
                return
            job = self.active[key] = EvalRow(session.id, event["eval"], session.label, agent=event.get("agent"))
            job.submitted = unix_time(event["time"])
        if what == "started" and job is not None:
            job.state, job.started, job.position = "running", unix_time(event["time"]), None
            job.code = shorten_code(event.get("code", ""), _CODE_CHARS) or job.code  # hooks had to allow it first
            session.running, session.state = job.eval_id, "busy"
            self._note_begin(session, job)
        elif what == "output":
            self._on_output(session, event["reply"], now)
        elif what == "finished" and job is not None:
            self._on_finished(session, job, event)
        elif what == "queued" and job is not None:
            job.position = event.get("position")
        elif what == "interrupt-requested" and job is not None:
            job.stopping = True

    def _mark_printing(self, session: SessionRow) -> None:
        """Mark as recently printing; drop the output of the least recently printing sessions."""
        self._printing[session.id] = None
        self._printing.move_to_end(session.id)
        while len(self._printing) > MAX_OUTPUTS:
            if (quiet := self.sessions.get(self._printing.popitem(last=False)[0])) is not None:
                quiet.output, quiet.output_known = Scrollback(), False

    def _find_ended(self, key: str) -> EvalRow | None:
        return next((job for job in self.recent if job.key == key), None)

    def _note_begin(self, session: SessionRow, job: EvalRow) -> None:
        self._mark_printing(session)
        if not job.header_shown:
            job.header_shown = True
            session.output.note(f"[{job.eval_id}] {job.code}", "bold cyan")

    def _note_end(self, session: SessionRow, job: EvalRow, event: Event) -> None:
        if not job.end_shown:
            job.end_shown = True
            _write_ending(session.output, event)

    def _on_output(self, session: SessionRow, reply: dict[str, Any], now: float) -> None:
        self._mark_printing(session)
        for stream, style in (("out", ""), ("err", "yellow")):
            if text := reply.get(stream):
                session.output.text(text, stream, style)
                self._printed_chars += len(text)
        self.output.record(now, self._printed_chars)
        for kind in reply.get("mime") or {}:
            session.output.note(f"-- a figure: {kind}", "dim")
        if "need-input" in reply.get("status", ()):
            session.output.note("-- waits for input: replctl stdin " + session.label + ' "text"', "magenta")

    def _on_finished(self, session: SessionRow, job: EvalRow, event: Event) -> None:
        self.active.pop(job.key, None)
        job.state, job.end = "done", event.get("status")
        if (took := event.get("duration-ms")) is not None:
            job.duration = took / 1000
        elif job.started is None:
            job.submitted = unix_time(event["time"])
        self.recent.appendleft(job)
        if session.running == job.eval_id:
            self._mark_idle(session)
        self._note_end(session, job, event)

    # --- answers ---

    def update_sessions(self, entries: Iterable[SessionEntry], *, include_ephemeral: bool) -> None:
        """Set the list of sessions; ephemeral ones are missing from it unless `include_ephemeral`."""
        self.revision += 1
        listed = {entry.session: entry for entry in entries}
        for key in [
            key
            for key, each in self.sessions.items()
            if key not in listed and (include_ephemeral or not each.ephemeral)
        ]:
            self._drop(key)
        queued = self.queued_counts()
        runs: dict[str, set[int]] = {}
        for job in self.active.values():
            if job.state == "running":
                runs.setdefault(job.session, set()).add(job.eval_id)
        for key, entry in listed.items():
            session = self.sessions.setdefault(key, SessionRow(key, output_known=entry.eval_count == 0))
            if session.epoch != entry.epoch:
                session.usage.reset()
            session.name, session.runtime, session.state = entry.name, entry.runtime, entry.state
            session.epoch, session.evals, session.agent = entry.epoch, entry.eval_count, entry.agent
            session.owner, session.mode, session.cwd = entry.owner, entry.session_mode, entry.cwd
            session.is_foreign = self._is_foreign(entry.owner)
            if queued[key] != entry.queued or runs.get(key, set()) != {entry.running} - {None}:
                session.jobs_known = False
            session.running = entry.running

    def update_jobs(self, session: str, entries: Iterable[JobEntry]) -> None:
        """Set the evals of a session."""
        self.revision += 1
        known = {job.eval_id for job in self.recent if job.session == session}
        found = self.sessions.get(session)
        name = session[:8] if found is None else found.label
        before = {job.key: self.active.pop(job.key) for job in self.jobs_of(session)}
        for entry in list(entries)[-MAX_RECENT:]:
            job = EvalRow(session, entry.eval_id, name, shorten_code(entry.code, _JOBS_CHARS), entry.agent)
            job.header_shown = job.key in before and before[job.key].header_shown
            job.submitted = unix_time(entry.submitted)
            job.started = None if entry.started is None else unix_time(entry.started)
            job.state = "running" if entry.state in ("starting", "running") else entry.state
            if entry.state != "done":
                self.active[job.key] = job
            elif entry.eval_id not in known:
                job.duration = None if entry.duration_ms is None else entry.duration_ms / 1000
                job.end = end_of(entry.status)
                self.recent.append(job)
        self.recent = deque(sorted(self.recent, key=lambda job: job.ended_at, reverse=True), maxlen=MAX_RECENT)
        if found is not None:
            found.jobs_known = True

    def update_stats(self, stats: dict[str, Any], now: float) -> None:
        """Set the broker's counters."""
        self.revision += 1
        self.stats = stats
        if "started" in stats:
            self._clock_offset = unix_time(stats["started"]) + stats.get("uptime-ms", 0) / 1000 - now
        counts = stats.get("counts", {})
        self.evals.record(now, sum(value for key, value in counts.items() if key.startswith("evals.")))
        self.refusals.record(now, sum(value for key, value in counts.items() if key.startswith("refused.")))
        self.output.record(now, self._printed_chars)

    def update_workers(self, rows: Iterable[dict[str, Any]], now: float) -> None:
        """Record the figures of the workers' last heartbeats."""
        for row in rows:
            if (session := self.sessions.get(row.get("session") or "")) is not None:
                session.usage.update_from_heartbeat(now, row.get("cpu-seconds") or 0.0, row.get("memory-bytes") or 0)

    def update_info(self, info: dict[str, Any], now: float) -> None:
        """Record a worker's report about its session."""
        session = self.sessions.get(info.get("session", ""))
        if session is None or info.get("epoch") != session.epoch:
            return
        self.revision += 1
        memory = info.get("memory") or {}
        session.usage.update(now, info.get("cpu-seconds"), memory.get("used") or info.get("memory-bytes"))
        session.usage_due = session.running is not None
        if session.running is None:
            session.usage.set_idle()

    def update_output(self, job: EvalRow, pieces: Iterable[tuple[str, str]], left_out: int, end: Event | None) -> None:
        """Set the output of an eval that began before the subscription, and its outcome."""
        session = self.sessions.get(job.session)
        if session is None:
            return
        self.revision += 1
        output = Scrollback()
        session.output = output
        job = self.active.get(job.key) or self._find_ended(job.key) or job  # a reply recreates the rows
        job.header_shown = job.end_shown = False
        self._note_begin(session, job)
        if left_out:
            output.note(f"-- {left_out} bytes not shown: replctl read {session.label} {job.eval_id}", "dim")
        for stream, text in pieces:
            output.text(text, stream, "yellow" if stream == "err" else "")
        if end is not None:
            self._note_end(session, job, end)

    # --- what is asked of it ---

    def broker_time(self, now: float) -> float:
        """Return Unix seconds on the broker's clock."""
        return now + self._clock_offset

    def jobs_of(self, session: str) -> list[EvalRow]:
        """Return the session's running and queued evals."""
        return [job for job in self.active.values() if job.session == session]

    def queued_counts(self) -> Counter[str]:
        """Return the number of queued evals by session."""
        return Counter(job.session for job in self.active.values() if job.state == "queued")

    def running_job(self, session: SessionRow) -> EvalRow | None:
        """Return the session's running eval, or None."""
        return None if session.running is None else self.active.get(f"{session.id}:{session.running}")

    def last_job(self, session: str) -> EvalRow | None:
        """Return the session's running or last eval, or None."""
        running = next((job for job in self.jobs_of(session) if job.state == "running"), None)
        return running or next((job for job in self.recent if job.session == session), None)


def _write_ending(output: Scrollback, event: Event) -> None:
    """Write an eval's outcome to its session's output."""
    output.reset_line()
    took = f" ({event['duration-ms'] / 1000:.3g} s)" if event.get("duration-ms") is not None else ""
    status = event.get("status")
    if status == "ok":
        if (value := event.get("value")) not in (None, "", "None", "undefined"):
            for line in str(value)[:_NOTE_CHARS].splitlines():
                output.note(f"= {line}", "green")
        return
    for line in (event.get("traceback") or "")[:_NOTE_CHARS].splitlines():
        output.note(line, "red")
    if status != "error" or not event.get("traceback"):
        why = one_line((event.get("error") or event.get("cause") or "")[:_NOTE_CHARS])
        lost = {"lost": "; state lost", "rolled-back": "; state rolled back"}.get(event.get("state") or "", "")
        output.note(f"-- {status}{took}" + (f": {why}" if why else "") + lost, "bold red")
