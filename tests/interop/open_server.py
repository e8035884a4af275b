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

from replctl.mcp.http import asgi, bind
from replctl.mcp.server import build
from replctl.tools.base import Answer, Context, Image, Settings, Steps, Tool
from replctl.tools.running import eval_fields, run
from replctl.tools.sets import ToolSet

# The smallest PNG there is: one pixel.
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()
STEPS = "import time\nfor step in range(3):\n    print('step', step, flush=True)\n    time.sleep(0.7)"


class Nothing(msgspec.Struct):
    """No arguments."""


def running(code: str) -> Callable[[Nothing, Context], Steps]:
    """A tool that runs this code in a throw-away session."""
    return lambda _, at: run("eval", eval_fields(at.settings, code, None), at)


def picture(_: Nothing, __: Context) -> Steps:
    """A tool that shows a picture."""
    return Answer(text="a picture", images=[Image("image/png", PIXEL)])
    yield


FIXTURES: dict[str, Callable[[Any, Context], Steps]] = {
    "test_simple_text": running("print('This is a simple text response for testing.')"),
    "test_image_content": picture,
    "test_error_handling": running("raise ValueError('This tool intentionally returns an error for testing')"),
    "test_tool_with_progress": running(STEPS),
}

if __name__ == "__main__":
    tools = ToolSet("default", Settings())
    for name, does in FIXTURES.items():
        tools.tools[name] = Tool(
            name=name, title=name, text=name, args=Nothing, run=does, runs_code=True, output={"type": "object"}
        )
    listener = bind("127.0.0.1:0")
    app = asgi(build(tools, sys.argv[1], "interop"), listener)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])
