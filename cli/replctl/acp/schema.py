"""Parameters of ACP methods as structs. Only declared keys of `params` are read, so `_meta` cannot override them."""

from __future__ import annotations

import os.path
import re
from typing import Any, TypeVar

import msgspec

from replctl.acp.rpc import INVALID_PARAMS, NOT_FOUND, RpcError

PROTOCOL_VERSION = 1
MAX_ID_BYTES = 200  # used in file names, with extensions
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}\Z")

T = TypeVar("T")


class AcpParams(msgspec.Struct, kw_only=True, rename="camel"):
    """Parameters of a method. Unknown keys are ignored, as ACP requires."""


class InitializeParams(AcpParams, kw_only=True, rename="camel"):
    """`initialize`. Client capabilities are not read: the adapter calls no optional client method."""

    protocol_version: int = PROTOCOL_VERSION


class NewSessionParams(AcpParams, kw_only=True, rename="camel"):
    """`session/new`. MCP servers and additional directories mean nothing to a REPL and are not read."""

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
    """`session/set_config_option`; every option is a select."""

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
    """Return the parameters as a struct. Raises RpcError if a key is missing or has the wrong type."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from None


def check_cwd(cwd: str) -> str:
    """Return the directory if it is absolute. Raises RpcError otherwise."""
    if not os.path.isabs(cwd) or "\0" in cwd:
        raise RpcError(INVALID_PARAMS, "cwd must be an absolute path", {"field": "cwd"})
    return cwd


def check_id(session_id: str) -> str:
    """Return a syntactically valid session id. Raises an RpcError that does not repeat an invalid one."""
    if not _ID.match(session_id):
        data = {"field": "sessionId", "reason": "letters, digits, - and _ only", "maxBytes": MAX_ID_BYTES}
        raise RpcError(INVALID_PARAMS, "invalid session id", data)
    return session_id


def unknown_session(session_id: str, why: str = "no such session") -> RpcError:
    """Return the error for a well-formed id of no session."""
    return RpcError(NOT_FOUND, why, {"sessionId": session_id})


def code_of(blocks: list[dict[str, Any]]) -> tuple[str, int]:
    """Return the code of a prompt and the number of resource links left out of it.

    Every agent must accept text and resource links. Raises RpcError for other kinds of content.
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
            data = {"field": f"prompt[{at}]", "reason": "a prompt may contain text and resource_link"}
            raise RpcError(INVALID_PARAMS, "unsupported content block in the prompt", data)
    return "\n".join(texts), links
