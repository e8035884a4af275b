"""Model of a broker, fed with events and replies and read by the tables. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from replctl.top.cell_text import one_line
from replctl.top.entities import EvalRow, SessionRow, end_of, shorten_code, unix_time
from replctl.top.formatting import format_span
from replctl.top.records import MAX_RECENT, Event, TopRecords
from replctl.top.scrollback import Scrollback
from replwire.quantities import count_of
from replwire.replies import JobEntry, SessionEntry

_CODE_CHARS = 400  # characters of an eval's code
_JOBS_CHARS = 80  # characters of code in `jobs`


class TopModel(TopRecords):
    """Records of a broker, updated by its events and replies.

    Times in events and replies are the broker's; `now` is any monotonic clock.
    """

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
            text = event.get("err") or event.get("reason") or event.get("code", "")
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
            text = {"reset": "reset", "lost": "worker lost", "moved": "moved"}[what]
            style = "yellow" if what == "moved" else "bold red"
            session.output.note(f"-- {text}, epoch {session.epoch}" + (f": {why}" if why else ""), style)
        elif what == "rolled-back":
            session.epoch = event.get("epoch", session.epoch)
            why = one_line(event.get("cause") or "")
            text = f"-- back at checkpoint {event.get('checkpoint')}, epoch {session.epoch}"
            session.output.note(text + (f": {why}" if why else ""), "bold red" if why else "yellow")
        elif what in ("hibernated", "resumed"):
            session.epoch = event.get("epoch", session.epoch)
            session.output.note(f"-- {what}, epoch {session.epoch}", "yellow")
            if what == "hibernated":
                session.state, session.running = what, None
                session.usage.reset()
        elif what == "closed":
            self._drop(session.id)

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
            session.usage.on_started(now)
            self._note_begin(session, job)
        elif what == "output":
            self._on_output(session, event["reply"], now)
        elif what == "finished" and job is not None:
            self._on_finished(session, job, event)
        elif what == "queued" and job is not None:
            job.position = event.get("position")
        elif what == "interrupt-requested" and job is not None:
            job.stopping = True

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

    def update_workers(self, rows: Iterable[dict[str, Any]]) -> None:
        """Record the figures of the workers' last heartbeats."""
        for row in rows:
            if (session := self.sessions.get(row.get("session") or "")) is not None:
                session.usage.update_from_heartbeat(row.get("cpu-seconds") or 0.0, row.get("memory-bytes") or 0)

    def update_info(self, info: dict[str, Any], now: float) -> None:
        """Record a worker's report about its session."""
        session = self.sessions.get(info.get("session", ""))
        if session is None or info.get("epoch") != session.epoch:
            return
        self.revision += 1
        memory = info.get("memory") or {}
        at_rest = session.running is None
        used = memory.get("used") or info.get("memory-bytes")
        session.usage.update(now, info.get("cpu-seconds"), used, at_rest=at_rest)
        session.usage_due = not at_rest
        if at_rest:
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
            output.note(f"-- {count_of(left_out, 'byte')} not shown: replctl read {session.label} {job.eval_id}", "dim")
        for stream, text in pieces:
            output.text(text, stream, "yellow" if stream == "err" else "")
        if end is not None:
            self._note_end(session, job, end)
