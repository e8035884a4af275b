"""Updates of one prompt to the client: messages, one tool call, and its live output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from replctl.acp import render, store

if TYPE_CHECKING:
    from replctl.acp.client_connection import AcpClientConnection
    from replwire.replies import Reply

_SHOW_SECONDS = 0.1  # between two updates with live output; each repeats all of it


class TurnUpdates:
    """The messages and the tool call of one prompt, sent and recorded.

    Args:
        client: The connection to the client.
        session_id: The ACP session.
        record: The stored turn, which gets the messages.
    """

    def __init__(self, client: AcpClientConnection, session_id: str, record: store.StoredTurn) -> None:
        self._client = client
        self._session_id = session_id
        self._record = record
        self._live_output = render.LiveOutput()
        self._show_timer: asyncio.TimerHandle | None = None
        self.tool_call: dict[str, Any] | None = None  # its current state

    def send_message(self, text: str) -> None:
        """Send a message of the agent; several messages become paragraphs."""
        first = not self._record.messages
        self._record.messages.append(store.truncate_middle(text))
        self.send_chunk(render.text_block(text if first else f"\n\n{text}"))

    def send_chunk(self, content: dict[str, Any]) -> None:
        """Send a content block of the agent."""
        self._client.send_update(self._session_id, "agent_message_chunk", content=content)

    # --- the tool call ---

    def open_tool_call(self, title: str, kind: str, status: str, code: str) -> None:
        """Announce the tool call."""
        self.tool_call = {"toolCallId": f"call-{self._record.turn}", "title": title, "kind": kind, "status": status}
        self._client.send_update(self._session_id, "tool_call", **self.tool_call, rawInput={"code": code})

    def update_tool_call(self, **fields: Any) -> None:
        """Send changed fields of the tool call."""
        assert self.tool_call is not None
        self.tool_call |= fields
        self._client.send_update(
            self._session_id, "tool_call_update", toolCallId=self.tool_call["toolCallId"], **fields
        )

    def close_tool_call(self, status: str, say: str | None = None, *texts: str, **fields: Any) -> None:
        """Close the tool call if one is open, and send the reason.

        Args:
            status: `completed` or `failed`.
            say: A message that follows.
            texts: What the tool call shows after its output.
            fields: Further fields of the update.
        """
        self.stop_live_output()
        if self.tool_call is not None and self.tool_call["status"] not in ("completed", "failed"):
            content = render.tool_content(self._live_output.text(), *texts)
            self.update_tool_call(status=status, content=content, **fields)
        if say is not None:
            self.send_message(say)

    # --- live output ---

    def on_output(self, _stream: str, text: str) -> None:
        """Show output soon."""
        self._live_output.add(text)
        self._schedule_show()

    def on_status(self, reply: Reply) -> None:
        """Show the place in the queue, or that output was dropped."""
        status = reply.status or ()
        if "queued" in status:
            ahead = reply.queue_position or 0
            self.update_tool_call(content=render.tool_content(f"queued behind {ahead} eval(s)"))
        elif "output-dropped" in status:
            self._live_output.add(f"\n…[{reply.dropped_bytes or 0} bytes skipped because they came too fast]…\n")

    def stop_live_output(self) -> None:
        """Send no live output any more."""
        if self._show_timer is not None:
            self._show_timer.cancel()

    def _schedule_show(self) -> None:
        if self._show_timer is None:
            self._show_timer = asyncio.get_running_loop().call_later(_SHOW_SECONDS, self._send_output)

    def _send_output(self) -> None:
        self._show_timer = None
        if self._client.is_slow:
            self._schedule_show()
        else:
            self.update_tool_call(content=render.tool_content(self._live_output.text()))
