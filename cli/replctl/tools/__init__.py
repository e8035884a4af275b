"""Tool sets for models, for custom agent loops: `from replctl.tools import toolset`.

with toolset("default", agent="ada") as tools:
    schemas = tools.schemas("anthropic")
    result = tools.call("eval", {"code": "6 * 7"})
    print(result.text, result.structured, result.images, result.error)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from replctl.client.address import current_directory, resolve
from replctl.client.errors import ReplError
from replctl.client.result import OnOutput
from replctl.tools.base import ToolImage, ToolResult, ToolSettings
from replctl.tools.catalog import SETS, ToolSet, schemas
from replctl.tools.render import error_result

if TYPE_CHECKING:
    from replctl.client.sync import Client

__all__ = ["SETS", "ToolImage", "ToolResult", "ToolSettings", "Tools", "toolset"]


class Tools:
    """A tool set with its own client, which connects with the first call. Not thread-safe."""

    def __init__(
        self,
        set: str = "default",
        agent: str | None = None,
        endpoint: str | None = None,
        settings: ToolSettings | None = None,
        client: Client | None = None,
        binding: str | None = None,
        cwd: str | None = None,
    ) -> None:
        if set not in SETS:
            raise ValueError(f"no tool set {set!r}; there are {', '.join(SETS)}")
        from replctl.extensions import configured_tools  # it needs this package

        settings = settings or ToolSettings()
        if cwd is not None:
            settings = replace(settings, cwd=os.path.abspath(cwd))
        elif settings.cwd is None:
            settings = replace(settings, cwd=_current_directory(endpoint))
        self.set = ToolSet(set, settings, configured_tools())
        self._agent, self._endpoint, self._binding = agent, endpoint, binding
        self._client = client
        self._own = client is None

    @property
    def names(self) -> list[str]:
        """Names of the tools."""
        return list(self.set.tools)

    def schemas(self, format: str = "anthropic") -> list[dict[str, Any]]:
        """Return the tool schemas in a provider's format: `mcp`, `openai` or `anthropic`."""
        return schemas(self.set, format)

    def call(
        self,
        name: str | Mapping[str, Any],
        arguments: Mapping[str, Any] | None = None,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Run one tool call as requested by a model.

        Failures of the call, the code, the session or the broker are part of the result. Ctrl-C interrupts the code and
        raises KeyboardInterrupt.

        Args:
            name: Name of the tool; in a set with one tool, the arguments alone.
            arguments: Arguments of the call.
            on_output: Called with the stream and the text as it arrives.

        Raises:
            ValueError: The endpoint is invalid, or a name is needed.
        """
        if not isinstance(name, str):
            if len(self.names) != 1:
                raise ValueError(f"which tool? There are {', '.join(self.names)}")
            return self.call(self.names[0], name, on_output)
        from replctl.client.sync import Client  # not at import: the MCP server lists its tools before it connects
        from replctl.tools.runner import run_tool

        if self._client is None:
            try:
                self._client = Client(self._endpoint, self._agent, binding=self._binding)
            except ReplError as error:
                return error_result(error)
        return run_tool(self.set.start_call(name, arguments), self._client, on_output)

    def disconnect(self) -> None:
        """Close the connection. Sessions keep running."""
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
    binding: str | None = None,
    cwd: str | None = None,
) -> Tools:
    """Return a tool set by name, with the tools of the extensions that the config names, as in MCP.

    Args:
        set: `default`, `full`, `slim`, `reply`, `agentrepl` or `nexo`.
        agent: Agent label.
        endpoint: Address of the broker; None for the default.
        settings: Sizes and times.
        client: A client to use; None for one that connects with the first call.
        binding: Label of the interface that the agent is used through.
        cwd: Directory of new sessions; None for the caller's, unless the broker is on another machine.

    Raises:
        ValueError: There is no such set.
    """
    return Tools(set, agent, endpoint, settings, client, binding, cwd)


def _current_directory(endpoint: str | None) -> str | None:
    try:
        return current_directory(resolve(endpoint, os.environ, os.getuid()).endpoint)
    except ReplError:  # the first call says so
        return None
