"""The peer of `acp`: an agent on the official python SDK that says `2` to every prompt. It runs no code."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse

from acp import Agent, run_agent, update_agent_message_text


class Echo:
    """As small as the SDK allows: the methods that the bench calls."""

    def __init__(self) -> None:
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        """Keep the client."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Shake hands."""
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **_: Any) -> NewSessionResponse:
        """Return the one session."""
        return NewSessionResponse(session_id="echo")

    async def prompt(self, session_id: str, **_: Any) -> PromptResponse:
        """One update and the end."""
        await self._client.session_update(session_id=session_id, update=update_agent_message_text("2"))
        return PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(run_agent(cast(Agent, Echo())))
