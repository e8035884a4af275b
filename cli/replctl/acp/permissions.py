"""May this run? The client is asked; whatever is not a clear yes, in time, is a no."""

from __future__ import annotations

import enum
from typing import Any

from replctl.acp.peer import Peer
from replctl.acp.rpc import Response

PERMISSION_SECONDS = 120.0  # how long a client may take over an answer
_OPTIONS = [
    {"optionId": "allow", "name": "Run it", "kind": "allow_once"},
    {"optionId": "reject", "name": "Do not run it", "kind": "reject_once"},
]


class Decision(enum.StrEnum):
    """What was decided; all but the first mean no."""

    ALLOWED = "allowed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    UNREADABLE = "unreadable"


WHY_NOT = {
    Decision.REJECTED: "Not run: permission was refused.",
    Decision.CANCELLED: "Not run: cancelled.",
    Decision.TIMED_OUT: "Not run: nobody gave permission in time.",
    Decision.UNREADABLE: "Not run: the answer to the request for permission could not be read.",
}


def ask(peer: Peer, session: str, tool: dict[str, Any]) -> int:
    """Ask whether this tool call may run; the id of the request, for `Peer.response` and `Peer.withdraw`."""
    params = {"sessionId": session, "toolCall": tool, "options": _OPTIONS}
    return peer.begin("session/request_permission", params)


def read(response: Response | None) -> Decision:
    """What an answer says; None is one that did not come in time."""
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
