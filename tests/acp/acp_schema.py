"""The published schema, as the official SDK has it, held against every message: nothing missing, nothing of our own."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from acp import schema

RESULTS = {
    "initialize": schema.InitializeResponse,
    "authenticate": schema.AuthenticateResponse,
    "logout": schema.LogoutResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/delete": schema.DeleteSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
    "session/prompt": schema.PromptResponse,
}
CALLS = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
}
CODES = {-32700, -32600, -32601, -32602, -32603, -32800, -32000, -32002}


@cache
def _validator(model: Any) -> Draft202012Validator:
    return Draft202012Validator(_closed(TypeAdapter(model).json_schema(by_alias=True)))


def _closed(node: Any) -> Any:
    """The schema with every object that names its properties closed: ACP reserves the root keys for itself."""
    if isinstance(node, list):
        return [_closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    whole = {key: _closed(value) for key, value in node.items()}
    if node.get("type") == "object" and "properties" in node:
        whole["additionalProperties"] = False
    return whole


def check(message: Any, asked: dict[Any, str]) -> None:
    """Fail when a message of the agent is not what the protocol says. `asked`: methods of our requests by id."""
    assert isinstance(message, dict), message
    assert message["jsonrpc"] == "2.0", message
    if "method" in message:
        assert set(message) <= {"jsonrpc", "id", "method", "params"}, message
        assert ("id" in message) == (message["method"] == "session/request_permission"), message
        assert message.get("id", -1) < 0, "our ids are below zero"
        _validate(CALLS[message["method"]], message["params"])
    elif "error" in message:
        assert set(message) == {"jsonrpc", "id", "error"}, message
        assert set(message["error"]) <= {"code", "message", "data"}, message
        assert message["error"]["code"] in CODES, message
        text = message["error"]["message"]
        assert text.strip(), message
        assert "\n" not in text, message
    else:
        assert set(message) == {"jsonrpc", "id", "result"}, message
        assert message["id"] in asked, message
        _validate(RESULTS[asked[message["id"]]], message["result"])


def _validate(model: Any, value: Any) -> None:
    faults = [error.message for error in _validator(model).iter_errors(value)]
    assert faults == [], f"{model.__name__}: {faults}: {value}"
