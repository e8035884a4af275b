"""Permission requests: anything other than a clear yes, in time, is a no."""

from __future__ import annotations

import enum
from typing import Any

from replctl.acp.client_connection import AcpClientConnection
from replctl.acp.rpc import RpcResponse

PERMISSION_SECONDS = 120.0  # time limit of a client's response
_OPTIONS = [
    {"optionId": "allow", "name": "Run it", "kind": "allow_once"},
    {"optionId": "reject", "name": "Do not run it", "kind": "reject_once"},
]


class Decision(enum.StrEnum):
    """Outcome of a permission request; every outcome but `ALLOWED` means no."""

    ALLOWED = "allowed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    UNREADABLE = "unreadable"


DENIAL_TEXTS = {
    Decision.REJECTED: "Not run: permission was refused.",
    Decision.CANCELLED: "Not run: cancelled.",
    Decision.TIMED_OUT: "Not run: no permission within the time limit.",
    Decision.UNREADABLE: "Not run: the permission response was unreadable.",
}


def request_permission(peer: AcpClientConnection, session: str, tool: dict[str, Any]) -> int:
    """Ask the client whether a tool call may run. Return the request's id, for `wait_response` and `cancel_request`."""
    params = {"sessionId": session, "toolCall": tool, "options": _OPTIONS}
    return peer.send_request("session/request_permission", params)


def parse_decision(response: RpcResponse | None) -> Decision:
    """Return the decision in a response; None is a response that did not arrive in time."""
    if response is None:
        return Decision.TIMED_OUT
    outcome = response.result.get("outcome") if isinstance(response.result, dict) else None
    if not isinstance(outcome, dict):
        return Decision.UNREADABLE
    if outcome.get("outcome") == "cancelled":
        return Decision.CANCELLED
    if outcome.get("outcome") != "selected":
        return Decision.UNREADABLE
    return Decision.ALLOWED if outcome.get("optionId") == "allow" else Decision.REJECTED
