"""Interfaces between transports and the broker behind them."""

from __future__ import annotations

from typing import Protocol

Body = bytes | memoryview


class ConnectionHandler(Protocol):
    """Handler for the connections and requests of a transport."""

    def on_connect(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> bytes | None:
        """Handle a new connection.

        Args:
            peer: The transport's name for the connection, never used twice.
            identity: The user at the other end as far as the kernel vouches for one.
            groups: Groups of the connecting process, where the kernel reports them.

        Returns:
            The error to send when there is no room for the connection, else None.
        """

    def on_identified(self, peer: bytes, identity: str) -> None:
        """Handle a connection that has shown a key: its identity changes."""

    def on_message_after_close(self, peer: bytes, identity: str) -> None:
        """Handle the first of the messages that arrive from a connection after its end.

        They are served under a new peer name, to which nothing can be sent.
        """

    def has_room(self, peer: bytes) -> bool:
        """Return whether there is room by now for a connection that had none when it was made."""

    def on_rejected(self, peer: bytes, why: str) -> None:
        """Handle a connection that broke the transport's rules: every request of it is refused with this reason."""

    def handle_request(self, peer: bytes, body: bytes) -> None:
        """Handle one request."""

    def has_pending(self, peer: bytes) -> bool:
        """Return whether some request of this connection has had no final reply yet."""

    def on_disconnect(self, peer: bytes) -> None:
        """Handle the end of a connection."""

    def on_unreachable(self, peer: bytes) -> None:
        """Handle a client that no longer takes replies; its connection may still be open."""


class ReplyTransport(Protocol):
    """Sender of replies to the connections of one transport."""

    prefix: bytes  # the first byte of these peers' names

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, first: Body | None = None, event: bool = False
    ) -> bool:
        """Send a message, or hold it while the client is slow.

        Args:
            peer: The connection.
            body: One JSON object.
            output_of: For live output and events: the id of the request or subscription. Such a message is dropped
                and counted when the client is too slow.
            first: A message to send together with `body`, before it.
            event: Whether a dropped message is counted as an event.

        Returns:
            False when the client cannot be reached.
        """

    def hang_up(self, peer: bytes, *, at_once: bool = False) -> None:
        """Read nothing more and close the connection: once its replies have left, or at once."""

    def disconnect(self, peer: bytes) -> None:
        """Read nothing more and close the connection a moment later."""

    def pause(self, peer: bytes, until: float) -> None:
        """Leave what a connection sends unread until that monotonic time, where the transport can."""

    def describe(self, peer: bytes) -> str:
        """Return a connection's description for the audit."""
