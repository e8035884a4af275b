"""One worker as the core sees it, and the workers of one spec."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from replbroker.core.effects import WorkerSpec
from replbroker.core.sessions.session import Session
from replwire.deadlines import Deadline
from replwire.link import HeartbeatBody

STARTING: Final = "starting"
WARM: Final = "warm"
ASSIGNED: Final = "assigned"


class Worker:
    """One worker as the core sees it. `process` is the number of the process that serves it, for a branch another's."""

    __slots__ = (
        "awaits_ready",
        "last_seen",
        "number",
        "process",
        "session",
        "spawned_at",
        "spec",
        "start_deadline",
        "state",
        "usage",
    )

    def __init__(self, number: int, spec: WorkerSpec, now: float, process: int | None = None) -> None:
        self.number = number
        self.process = number if process is None else process
        self.spec = spec
        self.state: str = STARTING
        self.awaits_ready = False  # for a branch, to assign it: its worker belongs to it from the beginning
        self.session: Session | None = None
        self.spawned_at = self.last_seen = now
        self.usage = HeartbeatBody()
        self.start_deadline: Deadline | None = None


class SpecPool:
    """Idle workers of one spec, and sessions that wait for one."""

    __slots__ = ("cause", "failures", "waiting", "warm")

    def __init__(self) -> None:
        self.warm: deque[Worker] = deque()
        self.waiting: deque[Session] = deque()
        self.failures = 0  # starts that failed since the last success
        self.cause = ""


class StartFailureHandler(Protocol):
    """The recipient of failed starts."""

    def on_start_failed(self, session: Session, cause: str, now: float) -> None:
        """Handle that a session gets no worker."""
