"""Approval requests of hooks, put to the user of an MCP client (elicitation).

In older protocol versions the client is asked while the call waits. In the current one the call ends with the question,
and the client sends the call again with its user's answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from replwire.replies import Approval

_ANSWER_TIMEOUT_S = 120.0  # time limit of a person's answer
_KEY = "approval"


class InputRequired(Exception):
    """The call ends with a question to the user."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("the user is asked")
        self.result = result


async def ask_approval(
    ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams, approval: Approval
) -> bool:
    """Return True if the client's user approves. A client that cannot ask, fails or is too slow counts as a no.

    Raises:
        InputRequired: The call must end with the question.
    """
    can = types.ClientCapabilities(elicitation=types.ElicitationCapability())
    if not ctx.session.check_client_capability(can):
        return False
    message = f"{approval.title}\n{approval.reason} (hook {approval.hook})"
    form: dict[str, Any] = {"type": "object", "properties": {}}
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return _answer_in_call(params, message, form)
    try:
        answer = await asyncio.wait_for(ctx.session.elicit_form(message, form, ctx.request_id), _ANSWER_TIMEOUT_S)
    except (MCPError, TimeoutError):
        return False
    return answer.action == "accept"


def _answer_in_call(params: types.CallToolRequestParams, message: str, form: dict[str, Any]) -> bool:
    """Return the answer that came with the call; raises InputRequired if there is none.

    The request state names the questions of this call, the open one last: all before it were approved, since each no
    ends the call.
    """
    question = hashlib.sha256(message.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    *allowed, latest = (params.request_state or "").split() or [""]
    answer = (params.input_responses or {}).get(_KEY)
    if isinstance(answer, types.ElicitResult) and answer.action == "accept":
        allowed.append(latest)
    if question in allowed:
        return True
    if question == latest and answer is not None:
        return False
    ask = types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=form))
    raise InputRequired(
        types.InputRequiredResult(input_requests={_KEY: ask}, request_state=" ".join([*allowed, question]))
    )
