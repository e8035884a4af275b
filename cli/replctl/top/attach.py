"""`replctl attach` in the place of the screen, as a child that ends before the screen comes back."""

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
READ_SECONDS = 60  # that an error of attach is left on the screen for, if nobody presses Enter


def attach(session: str, endpoint: str, agent: str, environ: Mapping[str, str]) -> int:
    """Run it and wait for its end; its exit code. SIGTERM and SIGHUP end it, and then reach who called."""
    command = [sys.executable, "-P", "-m", "replctl", "attach", session, "--endpoint", endpoint, "--agent", agent]
    command.append("--no-start")
    saved = termios.tcgetattr(0)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:  # not ignored: that would be inherited
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
        termios.tcsetattr(0, termios.TCSADRAIN, saved)  # a child that was killed leaves it as it was using it


def _end_with_parent(parent: int) -> Callable[[], None]:
    """What the child does first: when we are killed it must not stay, at a terminal that the shell has taken back."""
    prctl = ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was too late for that
            os._exit(1)

    return begin


def _ignore_signal(*_: Any) -> None:
    pass


def _wait_for_enter(code: int) -> None:
    """Leave what it said to be read."""
    os.write(1, f"attach ended with exit code {code}; Enter goes back to top".encode())
    if select.select([0], [], [], READ_SECONDS)[0]:
        os.read(0, 1024)
