"""fastmcp's client: `talk_fastmcp.py COMMAND ARGS...` prints what it was told as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main(command: str, args: list[str]) -> None:
    transport = StdioTransport(command, args, env=dict(os.environ), keep_alive=False)
    async with Client(transport) as client:
        value = await client.call_tool("eval", {"code": "6*7", "session": "fastmcp"})
        error = await client.call_tool("eval", {"code": "1/0", "session": "fastmcp"}, raise_on_error=False)
        info = await client.call_tool("info", {"session": "fastmcp", "what": "jobs"})
        print(
            json.dumps(
                {
                    "tools": [tool.name for tool in await client.list_tools()],
                    "value": value.content[0].text,
                    "error": error.is_error,
                    "jobs": info.content[0].text,
                    "resources": [str(each.uri) for each in await client.list_resources()],
                    "prompts": [prompt.name for prompt in await client.list_prompts()],
                }
            )
        )


asyncio.run(main(sys.argv[1], sys.argv[2:]))
