"""The Python SDK's own client, which holds every message against its models."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from acp.schema import AllowedOutcome, RequestPermissionResponse

from acp import Client, RequestError, spawn_agent_process, text_block

sys.path.insert(0, str(Path(__file__).parent))

from acp_world import World, world


class Editor(Client):
    """A client that keeps what it is told."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.answer = "allow"
        self.requests: list[Any] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # noqa: ARG002
        """Keep it."""
        self.updates.append(update)

    async def request_permission(self, **requests: Any) -> RequestPermissionResponse:  # type: ignore[override]
        """Answer as the test wants."""
        self.requests.append(requests)
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", optionId=self.answer))

    def text(self) -> str:
        """Return the text of the agent since the last call."""
        chunks = [each for each in self.updates if each.session_update == "agent_message_chunk"]
        self.updates.clear()
        return "".join(each.content.text for each in chunks)


async def _drive(here: World) -> None:
    editor, cwd = Editor(), str(here.directory / "work")
    async with spawn_agent_process(editor, *here.agent, env=here.environ, use_unstable_protocol=True) as (
        agent,
        process,
    ):
        reply = await agent.initialize(protocol_version=1)
        assert reply.agent_info is not None
        assert reply.agent_info.name == "replctl"
        session = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id

        async def prompt(code: str) -> tuple[str, str]:
            editor.updates.clear()
            answer = await agent.prompt(session_id=session, prompt=[text_block(code)])
            return answer.stop_reason, editor.text()

        assert await prompt("x = 6*7\nprint('out')\nx") == ("end_turn", "42")
        assert await prompt("1/0") == ("end_turn", "ZeroDivisionError: division by zero")
        await agent.set_session_mode(session_id=session, mode_id="ask")
        assert await prompt("x + 1") == ("end_turn", "43")
        editor.answer = "reject"
        assert await prompt("x + 2") == ("end_turn", "Not run: permission was refused.")
        assert len(editor.requests) == 2
        got = await agent.set_config_option(session_id=session, config_id="mode", value="auto")
        assert got is not None
        assert [each.current_value for each in got.config_options] == ["auto", "python", "own"]
        slow = asyncio.ensure_future(prompt("print('on'); import time; time.sleep(30)"))
        async with asyncio.timeout(20):
            while not any(getattr(each, "content", None) for each in editor.updates):
                await asyncio.sleep(0.005)
        await agent.cancel(session_id=session)
        assert (await slow)[0] == "cancelled"
        assert [each.session_id for each in (await agent.list_sessions()).sessions] == [session]
        editor.updates.clear()
        await agent.load_session(session_id=session, cwd=cwd, mcp_servers=[])
        assert sum(each.session_update == "user_message_chunk" for each in editor.updates) == 5
        await agent.resume_session(session_id=session, cwd=cwd)
        assert await prompt("x") == ("end_turn", "42")
        await agent.close_session(session_id=session)
        with pytest.raises(RequestError) as caught:
            await agent.prompt(session_id=session, prompt=[text_block("1")])
        assert caught.value.code == -32002
    assert process.returncode == 0


def test_the_python_client_drives_every_method() -> None:
    with world() as here:
        asyncio.run(asyncio.wait_for(_drive(here), 120))
