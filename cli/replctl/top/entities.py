"""Sessions and evals as the screen knows them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from replctl.top.cell_text import one_line
from replctl.top.formatting import SessionUsage
from replctl.top.scrollback import Scrollback

_ENDS = {
    "interrupted": "cancelled",
    "timeout": "timeout",
    "worker-lost": "died",
    "session-reset": "died",
    "shutdown": "refused",
    "session-not-found": "refused",
}


@dataclass
class EvalRow:
    """An eval, or another task in a session's queue."""

    session: str
    eval_id: int
    name: str  # the session's name, kept for when it is closed
    code: str = ""
    agent: str | None = None
    state: str = "queued"  # queued, running, done
    end: str | None = None  # status in `eval/finished`
    submitted: float = 0.0  # Unix seconds, by the broker's clock
    started: float | None = None
    duration: float | None = None  # seconds
    position: int | None = None
    stopping: bool = False  # an interrupt was requested
    header_shown: bool = False  # its first line is in the session's output
    end_shown: bool = False  # its last line is in the session's output

    @property
    def key(self) -> str:
        """A key unique among all evals."""
        return f"{self.session}:{self.eval_id}"

    @property
    def ended_at(self) -> float:
        """Time of the end, on the broker's clock."""
        return (self.started or self.submitted) + (self.duration or 0.0)


@dataclass
class SessionRow:
    """A session."""

    id: str
    name: str | None = None
    runtime: str = ""
    state: str = "vacant"
    epoch: int = 1
    evals: int = 0
    agent: str | None = None
    owner: str = ""
    is_foreign: bool = False  # owned by another user
    mode: str = "normal"
    cwd: str | None = None
    ephemeral: bool = False
    running: int | None = None
    usage: SessionUsage = field(default_factory=SessionUsage)
    output: Scrollback = field(default_factory=Scrollback)
    jobs_known: bool = False
    usage_due: bool = True  # the worker must be polled
    output_known: bool = False  # earlier output was loaded, or is not needed

    @property
    def label(self) -> str:
        """The session's name, with its owner if it is another user's, or the beginning of its id."""
        return f"{self.owner}/{self.name}" if self.is_foreign and self.name else self.name or self.id[:8]


def end_of(status: Iterable[str]) -> str:
    """Return the outcome of an eval, in the words of `eval/finished`, from the status of its reply."""
    words = set(status)
    found = next((outcome for word, outcome in _ENDS.items() if word in words), None)
    return found or ("error" if "error" in words else "ok")


def shorten_code(code: str, most: int) -> str:
    """Return the beginning of the code on one line, marked if more may follow."""
    return one_line(code[:most]) + ("…" if len(code) >= most else "")


def unix_time(time: str) -> float:
    """Return the Unix seconds of a time in the broker's format."""
    return datetime.fromisoformat(time).timestamp()
