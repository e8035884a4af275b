"""Tool sets for models, for people who write their own agent loops: `from replctl.tools import toolset`.

with toolset("default", agent="ada") as tools:
    schemas = tools.schemas("anthropic")
    answer = tools.call("eval", {"code": "6 * 7"})
    print(answer.text, answer.facts, answer.images, answer.error)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from replctl.client.errors import ReplError
from replctl.client.result import OnOutput
from replctl.client.sync import Client
from replctl.tools.base import ToolImage, ToolResult, ToolSettings
from replctl.tools.catalog import SETS, ToolSet
from replctl.tools.formats import schemas
from replctl.tools.render import error_result
from replctl.tools.runner import run_tool

__all__ = ["SETS", "ToolImage", "ToolResult", "ToolSettings", "Tools", "toolset"]


class Tools:
    """A tool set with a client of its own, which is connected by the first call. For one thread."""

    def __init__(
        self,
        set: str = "default",
        agent: str | None = None,
        endpoint: str | None = None,
        settings: ToolSettings | None = None,
        client: Client | None = None,
    ) -> None:
        if set not in SETS:
            raise ValueError(f"no tool set {set!r}; there are {', '.join(SETS)}")
        self.set = ToolSet(set, settings)
        self._agent, self._endpoint = agent, endpoint
        self._client = client
        self._own = client is None

    @property
    def names(self) -> list[str]:
        """The tools' names."""
        return list(self.set.tools)

    def schemas(self, format: str = "anthropic") -> list[dict[str, Any]]:
        """What a model is to be given: `mcp`, `openai` or `anthropic`."""
        return schemas(self.set, format)

    def call(
        self,
        name: str | Mapping[str, Any],
        arguments: Mapping[str, Any] | None = None,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Do one tool call as a model asked for it. In a set of one tool the arguments alone will do.

        What goes wrong with the call, the code, the session or the broker is in the answer. Raises ValueError for an
        endpoint that is none. Ctrl-C interrupts the code and raises KeyboardInterrupt.
        """
        if not isinstance(name, str):
            if len(self.names) != 1:
                raise ValueError(f"which tool? There are {', '.join(self.names)}")
            return self.call(self.names[0], name, on_output)
        if self._client is None:
            try:
                self._client = Client(self._endpoint, self._agent)
            except ReplError as error:
                return error_result(error)
        return run_tool(self.set.start_call(name, arguments), self._client, on_output)

    def disconnect(self) -> None:
        """End the connection. Sessions live on."""
        if self._own and self._client is not None:
            self._client.disconnect()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.disconnect()


def toolset(
    set: str = "default",
    agent: str | None = None,
    endpoint: str | None = None,
    settings: ToolSettings | None = None,
    client: Client | None = None,
) -> Tools:
    """A tool set by name: `default`, `reply`, `agentrepl` or `nexo`. Raises ValueError for another."""
    return Tools(set, agent, endpoint, settings, client)
