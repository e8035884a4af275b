"""Progress notifications while code runs: the last printed line, or a keep-alive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext

from replctl.client.result import OnOutput
from replctl.tools.text_budget import clean

REPORT_INTERVAL_SECONDS = 0.5  # at most two notifications a second
KEEPALIVE_SECONDS = 5.0  # some clients extend their time limit, often a minute, with each notification
MAX_TEXT = 200


class ProgressReporter:
    """Text and timing of one call's notifications."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._reported_at = self._begin
        self._line = ""
        self._fresh = False

    def output(self, _stream: str, text: str) -> None:
        """Keep the last line of live output that is not blank."""
        for line in reversed(text[-4 * MAX_TEXT :].replace("\r", "\n").split("\n")):
            if shown := clean(line).text.strip():
                self._line, self._fresh = shown[-MAX_TEXT:], True
                return

    def due(self, now: float) -> tuple[float, str] | None:
        """Return the seconds since the call began and the text to send, or None if nothing is due."""
        if not self._fresh and now - self._reported_at < KEEPALIVE_SECONDS:
            return None
        self._fresh, self._reported_at = False, now
        return now - self._begin, self._line or "running"


@asynccontextmanager
async def report_progress(ctx: ServerRequestContext[Any, Any]) -> AsyncIterator[OnOutput | None]:
    """Send progress inside the block if the client asked for it. Yields the callback for live output, or None."""
    if not (ctx.meta and ctx.meta.get("progress_token") is not None):
        yield None
        return
    progress = ProgressReporter()

    async def report() -> None:
        while True:
            await anyio.sleep(REPORT_INTERVAL_SECONDS)
            if (update := progress.due(time.monotonic())) is not None:
                await ctx.session.report_progress(update[0], message=update[1])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(report)
        yield progress.output
        tasks.cancel_scope.cancel()
