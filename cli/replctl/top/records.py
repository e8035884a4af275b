"""Records of a broker's sessions and evals, for the screen. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any

from replctl.top.cell_text import one_line
from replctl.top.entities import EvalRow, SessionRow
from replctl.top.formatting import Rate
from replctl.top.scrollback import Scrollback

MAX_RECENT = 200  # finished evals
MAX_OUTPUTS = 100  # sessions with kept output; that of others is loaded again when shown
_NOTE_CHARS = 4000  # characters of an eval's value or error in the output

Event = dict[str, Any]


class TopRecords:
    """Sessions, evals and metrics of a broker, as known by now."""

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

    # --- changes ---

    def _mark_idle(self, session: SessionRow) -> None:
        session.state, session.running = "idle", None
        session.usage.set_idle()
        session.usage_due = True

    def _drop(self, key: str) -> None:
        self._printing.pop(key, None)
        if self.sessions.pop(key, None) is not None:
            for job in [job for job in self.active.values() if job.session == key]:
                del self.active[job.key]

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
