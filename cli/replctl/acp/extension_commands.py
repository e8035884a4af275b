"""Extension commands as slash commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from replctl import extensions as ext
from replctl.acp.slash_commands import SlashCommand, SlashHandler
from replctl.acp.store import truncate_middle
from replctl.client.errors import ReplError
from replwire.ext.registry import ExtensionRegistry

if TYPE_CHECKING:
    from replctl.acp.turns import PromptTurn


def build_slash_commands(registry: ExtensionRegistry, agent: str) -> list[SlashCommand]:
    """Build the slash commands of all extensions. Each call runs in a thread with its own connection."""
    return [
        SlashCommand(
            each.name,
            each.summary or each.name,
            _build_handler(registry, each.name, agent),
            each.hint or None,
            each.changes,
        )
        for each in ext.commands_by_name(registry).values()
    ]


def _build_handler(registry: ExtensionRegistry, name: str, agent: str) -> SlashHandler:
    def run(endpoint: str, session: str, argument: str) -> str:
        from replctl.client.sync import Client

        with Client(endpoint, agent, start=False) as client:
            try:
                return truncate_middle(ext.run_command(registry, name, client, session, argument))
            except ReplError:
                raise
            except BaseException as error:  # noqa: BLE001 - in this thread nobody else's: it must not end the process
                raise ReplError("not-supported", f"extension command {name}: {type(error).__name__}") from None

    async def begin(turn: PromptTurn, argument: str) -> str:
        return await asyncio.to_thread(run, turn.services.broker.endpoint, turn.session.repl_session, argument)

    return begin
