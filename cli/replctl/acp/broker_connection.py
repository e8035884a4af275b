"""Connection to the broker: one client for all ACP sessions, created on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replctl.acp.options import RUNTIMES, BrokerSnapshot
from replctl.acp.rpc import INTERNAL_ERROR, RpcError, one_line
from replctl.client.errors import ReplError

if TYPE_CHECKING:
    from replctl.client.aio import AsyncClient
    from replctl.client.start import BrokerReady


class AcpBrokerConnection:
    """Broker address and lazily created client. ZeroMQ is imported with the first request, not during the handshake."""

    def __init__(
        self, endpoint: str, agent: str, start: bool, note: Callable[[str], None], binding: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self._binding = binding
        self._agent, self._start, self._note = agent, start, note
        self._client: AsyncClient | None = None
        self._mismatch: str | None = None

    @property
    def client(self) -> AsyncClient:
        """The client; its first request connects, and starts a broker if allowed."""
        if self._client is None:
            from replctl.client.aio import AsyncClient

            self._client = AsyncClient(
                self.endpoint,
                self._agent,
                start=self._start,
                on_start=self._on_started,
                on_mismatch=self._on_mismatch,
                binding=self._binding,
            )
        return self._client

    async def fetch_snapshot(self) -> BrokerSnapshot:
        """Fetch the broker's sessions and runtimes. Raises RpcError if no broker can be reached."""
        try:
            return BrokerSnapshot(await self.client.sessions(), (await self.client.describe()).runtimes or RUNTIMES)
        except ReplError as error:
            raise unreachable_error(error) from None

    async def disconnect(self) -> None:
        """Close the connection. The sessions keep running."""
        if self._client is not None:
            await self._client.disconnect()

    def _on_started(self, started: BrokerReady) -> None:
        self._note(f"started a broker at {', '.join(started.listening)} (pid {started.pid})")
        if started.lost_sessions:
            self._note(f"sessions lost with the previous broker: {', '.join(started.lost_sessions)}")
        for warning in started.warnings:
            self._note(warning)

    def _on_mismatch(self, text: str) -> None:
        self._note(text)
        self._mismatch = text

    def take_mismatch(self) -> str | None:
        """Return the pending version-mismatch message and clear it, or return None."""
        text, self._mismatch = self._mismatch, None
        return text


def unreachable_error(error: ReplError) -> RpcError:
    """Return the JSON-RPC error for a broker that is unreachable or refused the request."""
    data = {"kind": error.code, "detail": error.message[-4000:]}
    return RpcError(INTERNAL_ERROR, one_line(f"{error.code}: {error.message}"), data)
