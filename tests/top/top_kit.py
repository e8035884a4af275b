"""A terminal with a person at it, a screen without one, and a model that is always the same."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from kit import TIMEOUT_S, BrokerProcess
from replctl.top.app import TopApp
from replctl.top.model import TopModel
from replwire.replies import SessionEntry

STARTED = "2026-01-02T03:04:00.000+00:00"


def text_of(app: TopApp) -> str:
    """Return the contents of the screen as plain text."""
    width = app.size.width
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip()[:width] for strip in lines) + "\n"


async def wait_for_text(pilot: Pilot[Any], what: str | Callable[[str], bool], timeout_s: float = TIMEOUT_S) -> str:
    """Wait until the screen shows this; the whole screen."""
    deadline = time.monotonic() + timeout_s
    while True:
        text = text_of(pilot.app)  # type: ignore[arg-type]
        if what in text if isinstance(what, str) else what(text):
            return text
        assert time.monotonic() < deadline, f"never shown: {what!r}\n{text}"
        await pilot.pause(0.05)


class Terminal:
    """The installed command at a pty of 100x30."""

    def __init__(self, broker: BrokerProcess, *args: str, **variables: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(theirs)
        environ = {**broker.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **variables}
        if "NO_COLOR" not in variables:
            environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "replctl", *args, "--endpoint", broker.endpoint, "--no-start"],
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_controlling,
        )
        self._theirs = theirs  # kept open, so that what was left can be looked at
        self.output = ""
        self._seen = 0

    def wait_for(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until this was written, after what was seen before."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output[self._seen :]:
            self._read(
                max(0.0, deadline - time.monotonic()), f"never shown: {text!r}; shown was {self.output[-3000:]!r}"
            )
        self._seen = self.output.index(text, self._seen) + len(text)

    def _read(self, timeout_s: float, why: str) -> None:
        assert select.select([self.ours], [], [], timeout_s)[0], why
        self.output += os.read(self.ours, 65536).decode("utf-8", "replace")

    def write(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def wait_for_exit(self, timeout_s: float = TIMEOUT_S) -> int:
        """Return the exit code once the program has ended; its last output is read."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"never ended: {self.output[-2000:]!r}"
            if select.select([self.ours], [], [], 0.05)[0]:
                self._read(0, "")
        while select.select([self.ours], [], [], 0.1)[0]:
            self._read(0, "")
        return self.process.returncode

    def is_restored(self) -> bool:
        """Return whether modes, cursor and the ordinary screen are restored."""
        back = all(
            self.output.rfind(off) > self.output.rfind(on)
            for on, off in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?2004h", "\x1b[?2004l"))
        )
        return back and termios.tcgetattr(self._theirs)[:4] == self.before[:4]

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


def _controlling() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def fixed_model() -> TopModel:
    """A broker with four agents, one minute and a half after its start, when the clock shows 90."""
    model = TopModel("ipc:///run/replctl/broker.sock")
    model.version, model.identity = "0.1.0", "uid:1000"
    listed = [
        ("s1", "etl", "busy", "python", 1, 2, 1, 2, "ada"),
        ("s2", "train", "busy", "python", 2, 9, 0, 9, "grace"),
        ("s3", "plots", "idle", "python", 1, 4, 0, None, "grace"),
        ("s4", "build", "vacant", "node", 3, 2, 0, None, "linus"),
        ("s5", None, "idle", "bash", 1, 1, 0, None, None),
    ]
    model.update_sessions([_entry(*each) for each in listed], include_ephemeral=True)
    for seconds, evals in ((30, 10), (90, 22)):
        model.update_stats(_stats(seconds, evals), float(seconds))
    for session in model.sessions.values():
        session.jobs_known = session.output_known = True
    model.sessions["s3"].mode = "plan"
    model.agent_cpu = {"ada": 1.25, "grace": 150.2, "linus": 0.04}

    def emit(type: str, session: str, at: float, **more: Any) -> None:
        model.apply_event({"type": type, "session": session, "time": moment(at), **more}, at)

    for eval, code in ((8, "model = Net(depth=4)"), (9, "for step in range(10_000):\n    model.fit(batch())")):
        emit("eval/accepted", "s2", 40 + eval, eval=eval, agent="grace", code=code)
        emit("eval/started", "s2", 40.5 + eval, eval=eval)
        if eval == 8:
            emit("eval/finished", "s2", 48.8, eval=8, status="ok", **{"duration-ms": 300.0})
    emit("eval/accepted", "s3", 55, eval=4, agent="grace", code="1/0")
    emit("eval/started", "s3", 55, eval=4)
    emit(
        "eval/finished",
        "s3",
        55.1,
        eval=4,
        status="error",
        error="ZeroDivisionError: division by zero",
        traceback="Traceback (most recent call last):\nZeroDivisionError: division by zero",
        **{"duration-ms": 2.5},
    )
    emit("eval/accepted", "s1", 70, eval=1, agent="ada", code="load('2026-01')")
    emit("eval/started", "s1", 70, eval=1)
    emit("eval/output", "s1", 71, eval=1, reply={"out": "\x1b[32mread\x1b[0m 250 rows\nread 500 rows\n"})
    emit("eval/output", "s1", 72, eval=1, reply={"err": "3 rows have no key\n"})
    emit("eval/accepted", "s1", 80, eval=2, agent="linus", code="rows.describe()")
    emit("eval/queued", "s1", 80, eval=2, position=1)
    for key, cpu, more, memory in (
        ("s1", 1.0, 0.25, 31_000_000),
        ("s2", 90.0, 59.0, 1_500_000_000),
        ("s3", 1.2, 0.0, 96_400_000),
    ):
        model.sessions[key].usage.update(30.0, cpu, memory)
        model.sessions[key].usage.update(90.0, cpu + more, memory)
    return model


def moment(seconds: float) -> str:
    """So many seconds after the broker's start."""
    return f"2026-01-02T03:{4 + int(seconds // 60):02}:{seconds % 60:06.3f}+00:00"


def _entry(*facts: Any) -> SessionEntry:
    key, name, state, runtime, epoch, evals, queued, running, agent = facts
    return SessionEntry(
        session=key,
        name=name,
        state=state,
        runtime=runtime,
        epoch=epoch,
        created=STARTED,
        created_at=0.0,
        last_activity=STARTED,
        eval_count=evals,
        queued=queued,
        running=running,
        owner="uid:1000",
        agent=agent,
        cwd=None,
        ref=name or key,
    )


def _stats(seconds: int, evals: int) -> dict[str, Any]:
    return {
        "slots": {"taken": 2, "of": 10},
        "queued": {"total": 1},
        "workers": {"assigned": 4, "warm": 2, "starting": 1},
        "connections": 5,
        "counts": {"evals.ok": evals, "refused.rate-limited": seconds // 45},
        "started": STARTED,
        "uptime-ms": seconds * 1000,
        "sessions": 5,
    }
