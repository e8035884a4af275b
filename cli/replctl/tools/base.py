"""What a tool is, and what it gives back. A tool asks a broker by yielding; it knows no socket and no event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from replctl.client.protocol import final_reply
from replctl.client.result import PendingRequest
from replctl.client.sync import DEFAULT_TIMEOUT
from replctl.tools.schema import schema_of
from replwire.replies import Reply


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool set behaves. Sizes in characters, times in seconds.

    `wait` is how long a call waits for code before it answers that it runs; `budget` bounds the text of one answer,
    `line` one line of it; `images` and `image_bytes` (base64) bound the pictures, as the broker does before, which puts
    those that are over its bounds into files. `cwd` is the folder of sessions that
    are opened. `structured` gives the tools that run code an output schema too.
    """

    wait: float = 45.0
    budget: int = 4_000
    line: int = 500
    images: int = 8
    image_bytes: int = 1_500_000
    cwd: str | None = None
    structured: bool = False

    def directory_fields(self, wanted: str | None = None) -> dict[str, Any]:
        """Fields for a session that is opened: the folder it is to have, or else ours, which it may do without."""
        return {"cwd": self.cwd, "cwd_needed": False} if wanted is None else {"cwd": wanted}


class ToolImage(NamedTuple):
    """A picture: its MIME type and its bytes in base64."""

    mime: str
    data: str


class ToolResult(msgspec.Struct, kw_only=True):
    """What a call gave: `text` for a model, `facts` for a program, and pictures. `error`: it did not go well."""

    text: str
    structured: dict[str, Any] = {}
    images: list[ToolImage] = []
    error: bool = False

    def __str__(self) -> str:
        return self.text


class ToolRequest(NamedTuple):
    """One request to a broker: what a tool yields, and a driver sends.

    `patience` seconds are waited for its end. `code`: it runs code, which is interrupted when the caller gives up.
    `until_input`: it is not waited for any longer when the code asks for input.
    """

    op: str
    fields: dict[str, Any]
    timeout: float = DEFAULT_TIMEOUT
    runs_code: bool = False
    until_input: bool = False


class ToolResponse(NamedTuple):
    """What came of an Ask. `asking`: the code waits for input, and its end has not been waited for."""

    pending: PendingRequest
    input_request: Reply | None = None


ToolCall = Generator[ToolRequest, ToolResponse, ToolResult]


class ToolContext(msgspec.Struct):
    """What a call knows besides its arguments. `memory` outlives the call: it belongs to the tool set."""

    settings: ToolSettings
    memory: dict[str, Any]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One tool: what models are told of it, and what it does.

    `output` is the schema of `Answer.facts`. `runs_code`: its answer is text and pictures that the user's code made.
    """

    name: str
    title: str
    text: str
    args: type[msgspec.Struct]
    run: Callable[[Any, ToolContext], ToolCall]
    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = False
    runs_code: bool = False
    output: dict[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return schema_of(self.args)

    def declared_output(self, settings: ToolSettings) -> dict[str, Any] | None:
        """The output schema that a client is told, or None.

        Clients that are given structured content show a model that alone, neither text nor pictures. So tools that run
        code have none, unless the settings say that programs are on the other side.
        """
        return self.output if settings.structured or not self.runs_code else None


def bad_arguments(text: str) -> ToolCall:
    """The steps of a call whose arguments cannot be used: none, and `text`, which says why."""
    return ToolResult(text=text, structured={"status": "bad-arguments"}, error=True)
    yield  # a generator, as all steps are


def request(op: str, **fields: Any) -> Generator[ToolRequest, ToolResponse, dict[str, Any]]:
    """Ask, and give the last reply as a dict with the keys of the wire. Raises ReplError when it says `error`."""
    got = yield ToolRequest(op, fields)
    reply: dict[str, Any] = msgspec.to_builtins(final_reply(got.pending))
    return reply
