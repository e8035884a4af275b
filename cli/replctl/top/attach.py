"""`replctl attach` in place of the screen, as a child that ends before the screen returns."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from typing import Any

_PR_SET_PDEATHSIG = 1
READ_SECONDS = 60  # display time of attach's error without a key press


def attach(session: str, endpoint: str, agent: str, environ: Mapping[str, str]) -> int:
    """Run attach and return its exit code. SIGTERM and SIGHUP end it, and then reach the caller's handlers."""
    command = [sys.executable, "-P", "-m", "replctl", "attach", session, "--endpoint", endpoint, "--agent", agent]
    command.append("--no-start")
    saved = termios.tcgetattr(0)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:  # not SIG_IGN, which the child would inherit
        signal.signal(number, _ignore_signal)
    ended = False
    child = subprocess.Popen(command, env=dict(environ), preexec_fn=_end_with_parent(os.getpid()))

    def end(number: int, frame: Any) -> None:
        nonlocal ended
        ended = True
        child.terminate()
        if callable(then := before[signal.Signals(number)]):
            then(number, frame)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        code = child.wait()
        if code and not ended:
            _wait_for_enter(code)
        return code
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        termios.tcsetattr(0, termios.TCSADRAIN, saved)  # a killed child does not restore the terminal


def _end_with_parent(parent: int) -> Callable[[], None]:
    """Return the child's setup: it must end with its parent, or it would stay at a terminal the shell took back."""
    prctl = ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent exited before prctl
            os._exit(1)

    return begin


def _ignore_signal(*_: Any) -> None:
    pass


def _wait_for_enter(code: int) -> None:
    """Leave the child's message on the screen until Enter."""
    os.write(1, f"attach ended with exit code {code}; press Enter to return to top".encode())
    if select.select([0], [], [], READ_SECONDS)[0]:
        os.read(0, 1024)
