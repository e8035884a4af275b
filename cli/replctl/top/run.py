"""Runs the screen, and ends it in every case."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from replctl.client.aio import AsyncClient
from replctl.top.app import TopApp
from replctl.top.feed import GIVE_UP_SECONDS
from replctl.top.model import TopModel
from replctl.top.polling import CONNECTION_FAULTS
from replctl.top.screen_extensions import ScreenExtensions
from replwire.faults import ExitCode

END_SECONDS = 5  # grace for an orderly exit of the screen


def run_screen(endpoint: str, agent: str, interval: float, parts: ScreenExtensions) -> tuple[int, str | None]:
    """Run the screen until the user quits. Returns the exit code, and what ended the screen if it was an error."""
    environ = dict(os.environ)  # textual removes NO_COLOR
    if isinstance(sys.__stderr__, io.TextIOWrapper):  # textual writes there; use UTF-8
        sys.__stderr__.reconfigure(encoding="utf-8")
    app = TopApp(TopModel(endpoint), lambda: AsyncClient(endpoint, agent, start=False), interval, agent, environ, parts)
    before = {number: signal.signal(number, _exit_handler(app)) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        code = app.run(mouse=False)
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    why = None
    if app.exit_error is not None:
        again = (
            f"; it did not come back within {GIVE_UP_SECONDS:.0f} s" if app.exit_error.code in CONNECTION_FAULTS else ""
        )
        why = app.exit_error.message + again
    return int(code or app.return_code or ExitCode.OK), why


def _exit_handler(app: TopApp) -> Callable[[int, Any], None]:
    def end(number: int, _: Any) -> None:
        signal.alarm(END_SECONDS)  # a blocked terminal must not prevent the exit
        app.request_exit(128 + number)

    return end
