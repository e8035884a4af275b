"""What a hook wants a person to decide, asked of a client that can ask its user (elicitation)."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from replwire.replies import Approval

_PATIENCE_S = 120.0  # for a person's answer; the call waits for it


async def approved(ctx: ServerRequestContext[Any, Any], approval: Approval) -> bool:
    """Whether the client's user says yes. A client that cannot ask, fails or takes too long has said no."""
    can = types.ClientCapabilities(elicitation=types.ElicitationCapability())
    if not ctx.session.check_client_capability(can):
        return False
    message = f"{approval.title}\n{approval.reason} (hook {approval.hook})"
    form: dict[str, Any] = {"type": "object", "properties": {}}
    try:
        answer = await asyncio.wait_for(ctx.session.elicit_form(message, form, ctx.request_id), _PATIENCE_S)
    except (MCPError, TimeoutError):
        return False
    return answer.action == "accept"
