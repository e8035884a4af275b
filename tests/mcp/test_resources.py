"""Resources and prompts of the MCP server, by the official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent

from mcp_kit import Connect, run
from stub_broker import Script, Send, StubBroker, send_done

pytestmark = pytest.mark.anyio


async def test_sessions_are_resources(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "seen = 3", "shelf")
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        sessions = await client.read_resource("repl://sessions")
        variables = await client.read_resource("repl://sessions/shelf/variables")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("repl://sessions/no-such/info")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("repl://elsewhere")
    assert "repl://sessions" in listed
    assert "repl://sessions/shelf/variables" in listed
    assert templates == [f"repl://sessions/{{name}}/{part}" for part in ("variables", "transcript", "info")]
    assert "shelf" in [entry["name"] for entry in json.loads(sessions.contents[0].text)]  # type: ignore[union-attr]
    assert json.loads(variables.contents[0].text) == [  # type: ignore[union-attr]
        {"name": "seen", "type": "int", "preview": "3"}
    ]


async def test_a_transcript_is_a_resource(connect: Connect, stub: Callable[[Script], StubBroker]) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        history = [
            {
                "eval-id": 1,
                "code": "x = 1",
                "status": ["done"],
                "epoch": 1,
                "submitted": "t",
                "agent": None,
                "duration-ms": 1.0,
            },
            {
                "eval-id": 2,
                "code": "1/0",
                "status": ["done", "error"],
                "epoch": 1,
                "submitted": "t",
                "agent": None,
                "duration-ms": 1.0,
            },
        ]
        send_done(say, history=history)

    async with connect("--endpoint", stub(script).endpoint) as client:
        read = await client.read_resource("repl://sessions/lab/transcript")
    assert read.contents[0].text == "[1] epoch 1, ok\nx = 1\n\n[2] epoch 1, error\n1/0\n"  # type: ignore[union-attr]


async def test_prompts_are_filled_in(connect: Connect) -> None:
    async with connect() as client:
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["debug", "benchmark"]
        prompt = await client.get_prompt("debug", {"problem": "the {session} sum is wrong", "session": "lab"})
        with pytest.raises(MCPError, match="Missing argument: code"):
            await client.get_prompt("benchmark", {})
        with pytest.raises(MCPError, match="Unknown prompt"):
            await client.get_prompt("nothing", {})
    content = prompt.messages[0].content
    assert isinstance(content, TextContent)
    assert 'info(session="lab")' in content.text
    assert "the {session} sum is wrong" in content.text
