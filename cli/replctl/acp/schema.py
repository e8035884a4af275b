"""What clients may send, as structs: only declared keys of `params` are ever read, so `_meta` can override none."""

from __future__ import annotations

import os.path
import re
from typing import Any, TypeVar

import msgspec

from replctl.acp.rpc import INVALID_PARAMS, NOT_FOUND, RpcError

PROTOCOL_VERSION = 1
MAX_ID_BYTES = 200  # it names files, with endings
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}\Z")

T = TypeVar("T")


class AcpParams(msgspec.Struct, kw_only=True, rename="camel"):
    """Parameters of a method. Unknown keys are ignored, as ACP wants it."""


class InitializeParams(AcpParams, kw_only=True, rename="camel"):
    """`initialize`; the client's capabilities are not read: nothing of the client's own is ever called."""

    protocol_version: int = PROTOCOL_VERSION


class NewSessionParams(AcpParams, kw_only=True, rename="camel"):
    """`session/new`. MCP servers and additional folders mean nothing to a REPL and are not read."""

    cwd: str


class SessionParams(AcpParams, kw_only=True, rename="camel"):
    """`session/close`, `session/delete`, `session/cancel`."""

    session_id: str


class OpenSessionParams(SessionParams, kw_only=True, rename="camel"):
    """`session/load` and `session/resume`."""

    cwd: str


class ListSessionsParams(AcpParams, kw_only=True, rename="camel"):
    """`session/list`."""

    cwd: str | None = None
    cursor: str | None = None


class SetModeParams(SessionParams, kw_only=True, rename="camel"):
    """`session/set_mode`."""

    mode_id: str


class SetConfigOptionParams(SessionParams, kw_only=True, rename="camel"):
    """`session/set_config_option`; ours are all selects."""

    config_id: str
    value: str


class PromptParams(SessionParams, kw_only=True, rename="camel"):
    """`session/prompt`."""

    prompt: list[dict[str, Any]]
    meta: Any = msgspec.field(name="_meta", default=None)


class CancelRequestParams(AcpParams, kw_only=True, rename="camel"):
    """`$/cancel_request`."""

    request_id: int | str


def parse_params(kind: type[T], params: dict[str, Any]) -> T:
    """The parameters as a struct. Raises RpcError: a key is missing or of the wrong type."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from None


def check_cwd(cwd: str) -> str:
    """The folder, when it is absolute. Raises RpcError."""
    if not os.path.isabs(cwd) or "\0" in cwd:
        raise RpcError(INVALID_PARAMS, "cwd must be an absolute path", {"field": "cwd"})
    return cwd


def check_id(session_id: str) -> str:
    """An id that could be one of ours. Raises RpcError, which does not repeat it: it may be hostile."""
    if not _ID.match(session_id):
        data = {"field": "sessionId", "reason": "letters, digits, - and _ only", "maxBytes": MAX_ID_BYTES}
        raise RpcError(INVALID_PARAMS, "invalid session id", data)
    return session_id


def unknown_session(session_id: str, why: str = "no such session") -> RpcError:
    """The error for a well-formed id that names nothing."""
    return RpcError(NOT_FOUND, why, {"sessionId": session_id})


def code_of(blocks: list[dict[str, Any]]) -> tuple[str, int]:
    """The code of a prompt, and how many resource links stood between its texts and are left out.

    Every agent has to accept text and resource links. Raises RpcError for kinds that were not offered.
    """
    texts: list[str] = []
    links = 0
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "resource_link" and isinstance(block.get("uri"), str):
            links += 1
        else:
            data = {"field": f"prompt[{at}]", "reason": "text and resource_link are what a prompt may have"}
            raise RpcError(INVALID_PARAMS, "a content block of the prompt cannot be taken", data)
    return "\n".join(texts), links
