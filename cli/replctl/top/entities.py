"""What there is in a broker: sessions and evals, as the screen knows them. No I/O."""

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
    """One eval, or what else takes its turn in a session."""

    session: str
    eval_id: int
    name: str  # its session's, for when that has gone
    code: str = ""
    agent: str | None = None
    state: str = "queued"  # queued, running, done
    end: str | None = None  # the word of `eval/finished`
    submitted: float = 0.0  # Unix seconds, by the broker's clock
    started: float | None = None
    duration: float | None = None  # seconds
    position: int | None = None
    stopping: bool = False  # an interrupt was asked for
    header_shown: bool = False  # its first line stands in its session's output
    end_shown: bool = False  # its last one does

    @property
    def key(self) -> str:
        """Its own among all."""
        return f"{self.session}:{self.eval_id}"

    @property
    def ended_at(self) -> float:
        """When it ended, by the broker's clock."""
        return (self.started or self.submitted) + (self.duration or 0.0)


@dataclass
class SessionRow:
    """One session."""

    id: str
    name: str | None = None
    runtime: str = ""
    state: str = "vacant"
    epoch: int = 1
    evals: int = 0
    agent: str | None = None
    owner: str = ""
    is_foreign: bool = False  # somebody else's
    mode: str = "normal"
    cwd: str | None = None
    ephemeral: bool = False
    running: int | None = None
    usage: SessionUsage = field(default_factory=SessionUsage)
    output: Scrollback = field(default_factory=Scrollback)
    jobs_known: bool = False
    usage_due: bool = True  # its worker is to be asked
    output_known: bool = False  # what it showed before we came was asked for, or is not worth it

    @property
    def label(self) -> str:
        """Its name, with that of its owner if it is somebody else's, or the beginning of its id."""
        return f"{self.owner}/{self.name}" if self.is_foreign and self.name else self.name or self.id[:8]


def end_of(status: Iterable[str]) -> str:
    """How an eval ended, in the words of `eval/finished`, from the status of its answer."""
    words = set(status)
    found = next((told for word, told in _ENDS.items() if word in words), None)
    return found or ("error" if "error" in words else "ok")


def shorten_code(code: str, most: int) -> str:
    """The beginning of the code on one line; where more may follow it says so."""
    return one_line(code[:most]) + ("…" if len(code) >= most else "")


def unix_time(time: str) -> float:
    """Unix seconds of a time as the broker writes it."""
    return datetime.fromisoformat(time).timestamp()
