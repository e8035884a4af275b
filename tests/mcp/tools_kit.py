"""A scripted broker's answers, and calls of a tool over it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from replctl.tools import Settings, toolset
from replctl.tools.base import Answer
from stub_broker import Say, Script, Stub, done

Start = Callable[[Script], Stub]
PICTURE = base64.b64encode(b"\x89PNG and so on").decode()


def answering(**replies: dict[str, Any]) -> Script:
    """A broker that answers each operation with these fields, and every other with a plain end."""

    def script(request: dict[str, Any], say: Say) -> None:
        done(say, **replies.get(request["op"].replace("-", "_"), {}))

    return script


def call(stub: Stub, name: str, arguments: dict[str, Any], set: str = "default", **settings: Any) -> Answer:
    """One call of a tool by agent `ada`."""
    with toolset(set, agent="ada", endpoint=stub.endpoint, settings=Settings(**settings)) as tools:
        return tools.call(name, arguments)
