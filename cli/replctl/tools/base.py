"""Tools, their requests and results. A tool yields requests and does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from replctl.client.flows import DEFAULT_TIMEOUT
from replctl.client.protocol import final_reply
from replctl.client.result import PendingRequest
from replctl.tools.schema import schema_of
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Reply


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a tool set. Sizes in characters, times in seconds.

    Attributes:
        wait: Time that a call waits for code before it returns `running`.
        budget: Size of one result's text; of a longer one only `flood` characters are shown.
        line: Size of one line of it.
        images: Number of images; the broker has limits too, and saves larger forms to files.
        image_bytes: Size of one image in base64.
        cwd: Directory of new sessions.
        structured: Give tools that run code an output schema as well.
    """

    wait: float = 45.0
    budget: int = 4_000
    line: int = 500
    images: int = 8
    image_bytes: int = 1_500_000
    cwd: str | None = None
    structured: bool = False

    @property
    def flood(self) -> int:
        """Characters shown of a result over the budget: short, as the rest is to be paged or searched."""
        return self.budget // 4

    def directory_fields(self, wanted: str | None = None) -> dict[str, Any]:
        """Return the fields for a new session's directory: `wanted`, or the caller's own, which is optional."""
        return {"cwd": self.cwd, "cwd_needed": False} if wanted is None else {"cwd": wanted}


class ToolImage(NamedTuple):
    """An image: MIME type and base64 data."""

    mime: str
    data: str


class ToolResult(msgspec.Struct, kw_only=True):
    """The result of a call: `text` for a model, `structured` data for a program, and images.

    `error` is true if the call failed. `blocks` has the same text in parts, for clients that show each on its own.
    """

    text: str
    blocks: list[str] = []
    structured: dict[str, Any] = {}
    images: list[ToolImage] = []
    error: bool = False

    def __str__(self) -> str:
        return self.text


class ToolRequest(NamedTuple):
    """A request that a tool yields and a runner sends.

    Attributes:
        op: The operation.
        fields: Its fields.
        timeout: Seconds to wait for the end.
        runs_code: True if the request runs code, which is interrupted when the caller gives up.
        until_input: Stop waiting when the code asks for input.
    """

    op: str
    fields: dict[str, Any]
    timeout: float = DEFAULT_TIMEOUT
    runs_code: bool = False
    until_input: bool = False


class ToolResponse(NamedTuple):
    """The outcome of a ToolRequest. `input_request` is set if the code waits for input instead of having ended."""

    pending: PendingRequest
    input_request: Reply | None = None


ToolCall = Generator[ToolRequest, ToolResponse, ToolResult]


class FollowUps(NamedTuple):
    """Names of a set's tools for what follows an eval: reading it, and answering its `input()`. None: there is none."""

    read: str | None = None
    stdin: str | None = None
    answer: str = "text"  # argument for the answer

    def read_call(self, session: str | None, eval_id: int, more: str = "") -> str | None:
        """Return the call that reads an eval, with its session unless that is the default one."""
        return None if self.read is None else _call(self.read, session, f"eval_id={eval_id}", more)

    def stdin_call(self, session: str | None) -> str | None:
        """Return the call that answers `input()`."""
        return None if self.stdin is None else _call(self.stdin, session, f"{self.answer}=…")


def _call(tool: str, session: str | None, *arguments: str) -> str:
    named = [f"session={session!r}"] if session not in (None, DEFAULT_SESSION) else []
    return f"{tool}({', '.join([*named, *filter(None, arguments)])})"


class ToolContext(msgspec.Struct):
    """Settings and memory of a tool set, passed to each call. `memory` outlives the call."""

    settings: ToolSettings
    memory: dict[str, Any]
    calls: FollowUps = FollowUps()


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool: its description for models and its function.

    `output` is the schema of `ToolResult.structured`. `runs_code` is true if the result is output of the user's code.
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
        """Return the output schema that a client is told, or None.

        Clients that receive structured content show only that to a model, neither text nor images; and it is longer
        than the text. So tools declare none, unless the settings say that the client is a program.
        """
        return self.output if settings.structured else None


def bad_arguments(text: str) -> ToolCall:
    """Return the result of a call with unusable arguments; `text` says why."""
    return ToolResult(text=text, structured={"status": "bad-arguments"}, error=True)
    yield  # makes this a generator, like all tool calls


def request(op: str, **fields: Any) -> Generator[ToolRequest, ToolResponse, dict[str, Any]]:
    """Send an operation and return the final reply as a dict with wire keys. Raises ReplError for an error status."""
    got = yield ToolRequest(op, fields)
    reply: dict[str, Any] = msgspec.to_builtins(final_reply(got.pending))
    return reply
