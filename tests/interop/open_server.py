"""The server over HTTP for the conformance suite, which can send no token: `open_server.py ENDPOINT`.

It is the app behind the guard, with the few tools that the suite asks for by name beside ours.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn

from replctl.mcp.http import bind, build_app
from replctl.mcp.server import build_server
from replctl.tools.base import ToolCall, ToolContext, ToolDefinition, ToolImage, ToolResult, ToolSettings
from replctl.tools.catalog import ToolSet
from replctl.tools.steps import model_eval_fields, run_and_render

# The smallest PNG there is: one pixel.
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()
STEPS = "import time\nfor step in range(3):\n    print('step', step, flush=True)\n    time.sleep(0.7)"


class NoToolArgs(msgspec.Struct):
    """No arguments."""


def running(code: str) -> Callable[[NoToolArgs, ToolContext], ToolCall]:
    """A tool that runs this code in a throw-away session."""
    return lambda _, at: run_and_render("eval", model_eval_fields(at.settings, code, None), at)


def picture(_: NoToolArgs, __: ToolContext) -> ToolCall:
    """A tool that shows a picture."""
    return ToolResult(text="a picture", images=[ToolImage("image/png", PIXEL)])
    yield


FIXTURES: dict[str, Callable[[Any, ToolContext], ToolCall]] = {
    "test_simple_text": running("print('This is a simple text response for testing.')"),
    "test_image_content": picture,
    "test_error_handling": running("raise ValueError('This tool intentionally returns an error for testing')"),
    "test_tool_with_progress": running(STEPS),
}

if __name__ == "__main__":
    tools = ToolSet("default", ToolSettings())
    for name, does in FIXTURES.items():
        tools.tools[name] = ToolDefinition(
            name=name, title=name, text=name, args=NoToolArgs, run=does, runs_code=True, output={"type": "object"}
        )
    listener = bind("127.0.0.1:0")
    app = build_app(build_server(tools, sys.argv[1], "interop"), listener)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])
