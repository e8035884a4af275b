"""Replay of a transcript as session updates, for `session/load`."""

from __future__ import annotations

from typing import Any

from replctl.acp import render
from replctl.acp.client_connection import AcpClientConnection
from replctl.acp.store import StoredTurn

_UNKNOWN = (
    "The outcome is unknown because the adapter exited first. `/jobs` and `/read` show what the session still has."
)


async def replay(peer: AcpClientConnection, session: str, turns: list[StoredTurn]) -> None:
    """Send all turns, at the client's reading pace. Cancelled turns are sent without output, which is incomplete."""
    for turn in turns:
        peer.send_update(session, "user_message_chunk", content=render.text_block(turn.prompt))
        if turn.tool is not None:
            peer.send_update(session, "tool_call", **_tool(turn, turn.tool))
        for at, text in enumerate(turn.messages if turn.stop is not None else [_UNKNOWN]):
            peer.send_update(session, "agent_message_chunk", content=render.text_block(f"\n\n{text}" if at else text))
        await peer.drain()


def _tool(turn: StoredTurn, tool: dict[str, Any]) -> dict[str, Any]:
    whole = {**tool, "rawInput": {"code": turn.prompt}}
    return {**whole, "content": []} if turn.stop == "cancelled" else whole


def variables_notice(state: dict[str, Any]) -> str | None:
    """Return the message about the session's variables after a replay, or None if there were none."""
    if state["state"] == "kept":
        return f"The session `{state['session']}` is still running, with its variables (epoch {state['epoch']})."
    if state["state"] == "rolled-back":
        return (
            f"The session `{state['session']}` is still running, but went back to a checkpoint or was hibernated "
            f"(epoch {state['epoch']}): some of the evals above may be undone, `/jobs` marks them."
        )
    if state["state"] == "hibernated":
        return f"The session `{state['session']}` is hibernated: the next prompt brings its variables back."
    if state["state"] == "lost":
        return (
            f"The variables of session `{state['session']}` are lost; the text above is only a transcript. "
            "The next prompt runs in a fresh worker."
        )
    return None
