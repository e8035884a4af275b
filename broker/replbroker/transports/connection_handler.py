"""The face that transports have to what stands behind them."""

from __future__ import annotations

from typing import Protocol

Body = bytes | memoryview


class ConnectionHandler(Protocol):
    """Whoever hears the connections of a transport."""

    def on_connect(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> bytes | None:
        """A connection was made, by a process of these groups where the kernel tells them; the refusal for one more
        than there is room for."""

    def on_identified(self, peer: bytes, identity: str) -> None:
        """A connection has shown a key: it is this from here on."""

    def on_message_after_close(self, peer: bytes, identity: str) -> None:
        """What a connection said that has ended since is heard as this peer's, to whom nothing can be sent."""

    def has_room(self, peer: bytes) -> bool:
        """Whether there is room for a connection by now that was one too many when it was made."""

    def on_rejected(self, peer: bytes, why: str) -> None:
        """Nothing of this connection is to be done."""

    def handle_request(self, peer: bytes, body: bytes) -> None:
        """A request came."""

    def has_pending(self, peer: bytes) -> bool:
        """Whether some request of this connection has no last answer yet."""

    def on_disconnect(self, peer: bytes) -> None:
        """A connection ended."""
