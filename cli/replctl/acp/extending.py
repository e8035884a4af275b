"""Commands that extensions bring, as slash commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from replctl import extensions as ext
from replctl.acp.commands import Command, Run
from replctl.acp.records import bounded
from replctl.client.errors import ReplError
from replwire.ext.registry import Registry

if TYPE_CHECKING:
    from replctl.acp.turns import Turn


def slash_commands(registry: Registry, agent: str) -> list[Command]:
    """All of them. Each runs in a thread, over a connection of its own."""
    return [
        Command(
            each.name, each.summary or each.name, _runner(registry, each.name, agent), each.hint or None, each.changes
        )
        for each in ext.commands(registry).values()
    ]


def _runner(registry: Registry, name: str, agent: str) -> Run:
    def run(endpoint: str, session: str, argument: str) -> str:
        from replctl.client.sync import Client

        with Client(endpoint, agent, start=False) as client:
            try:
                return bounded(ext.run(registry, name, client, session, argument))
            except ReplError:
                raise
            except BaseException as error:  # noqa: BLE001 - in this thread nobody else's: it must not end the process
                raise ReplError("not-supported", f"extension command {name}: {type(error).__name__}") from None

    async def begin(turn: Turn, argument: str) -> str:
        return await asyncio.to_thread(run, turn.desk.link.endpoint, turn.session.home, argument)

    return begin
