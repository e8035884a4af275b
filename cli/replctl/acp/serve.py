"""Life cycle of the adapter process: from its first line to its last."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from replctl.acp.client_connection import AcpClientConnection, DiagnosticsLog
from replctl.acp.modes import Mode
from replctl.acp.server import AcpServer
from replctl.acp.stdio import StdinReader, StdoutWriter
from replctl.acp.turns import AcpServices

_FLUSH_SECONDS = 1.0


async def serve_acp(
    source: int,
    sink: int,
    notes: DiagnosticsLog,
    make_services: Callable[[AcpClientConnection], AcpServices],
    mode: Mode,
) -> bool:
    """Serve the client until end of file, a signal or a broken pipe. Returns False if reading failed."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    failed: list[OSError] = []

    def on_broken(why: str) -> None:
        notes(why)
        over.set()

    def on_end(error: OSError | None) -> None:
        if error is not None:
            notes(f"cannot read from the client: {error.strerror}")
            failed.append(error)
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    loop.set_exception_handler(lambda _, context: notes(f"internal error: {context.get('exception') or context}"))
    writer = StdoutWriter(sink, on_broken)
    server = AcpServer(make_services(AcpClientConnection(writer, notes)), mode)
    reader = StdinReader(source, server.handle_line, on_end)
    await over.wait()
    reader.stop()
    await server.stop()
    try:
        async with asyncio.timeout(_FLUSH_SECONDS):
            await writer.wait_flushed()
    except TimeoutError:
        notes("the client did not read the last messages")
    return not failed
