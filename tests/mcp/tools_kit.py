"""A scripted broker's answers, and calls of a tool over it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from replctl.tools import ToolSettings, toolset
from replctl.tools.base import ToolResult
from stub_broker import Script, Send, StubBroker, send_done

Start = Callable[[Script], StubBroker]
PICTURE = base64.b64encode(b"\x89PNG and so on").decode()


def scripted_replies(**replies: dict[str, Any]) -> Script:
    """A broker that answers each operation with these fields, and every other with a plain end."""

    def script(request: dict[str, Any], say: Send) -> None:
        send_done(say, **replies.get(request["op"].replace("-", "_"), {}))

    return script


def call_tool(
    stub: StubBroker, name: str, arguments: dict[str, Any], set: str = "default", **settings: Any
) -> ToolResult:
    """One call of a tool by agent `ada`."""
    with toolset(set, agent="ada", endpoint=stub.endpoint, settings=ToolSettings(**settings)) as tools:
        return tools.call(name, arguments)
