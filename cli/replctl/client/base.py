"""The common base of both clients: the address, the protocol state, and answers to `input()`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from replctl.client import flows
from replctl.client.address import Address, project_at, resolve
from replctl.client.protocol import ClientProtocol
from replctl.client.result import OnStatus, Result
from replwire.replies import Reply

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady
    from replctl.client.transport import Transport

ReplyT = TypeVar("ReplyT")  # Reply, or a coroutine that returns one
ResultT = TypeVar("ResultT")  # Result, or a coroutine that returns one
Stdin = str | Callable[[], str | None]


class BaseClient(ABC, Generic[ReplyT, ResultT]):
    """A connection to one broker.

    Args:
        endpoint: Address of the broker; None for REPLCTL_ENDPOINT, the config file or the user's socket.
        agent: Agent label, used for fair scheduling.
        start: Start a broker if none is running.
        on_start: Called with the ready message of a broker that was started.
        key: Client key file for endpoints over TCP; None for REPLCTL_KEY_FILE.
        directory: The session `default` is that of this directory's project; None for that of the agent.
        on_mismatch: Called once per connection with a sentence if the broker has another version.
        binding: Label of the interface that the agent is used through, for the broker's rules.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        agent: str | None = None,
        start: bool = True,
        on_start: Callable[[BrokerReady], None] | None = None,
        key: str | None = None,
        directory: str | None = ".",
        on_mismatch: Callable[[str], None] | None = None,
        binding: str | None = None,
    ) -> None:
        self.address: Address = resolve(endpoint, os.environ, os.getuid())
        self.agent = agent
        self._start = start
        self._on_start = on_start
        self._key = key
        project = project_at(self.address, directory)
        self._protocol = ClientProtocol(agent, os.urandom(4).hex() + "-", project, on_mismatch, binding)
        self._transport: Transport | None = None
        self._open()

    def _open(self) -> None:
        """Prepare the connection, once the address is known."""

    @property
    def broker_version(self) -> str | None:
        """The broker's version if it differs from this client's; None before the first reply."""
        return self._protocol.broker_version

    @abstractmethod
    def request(self, op: str, **fields: Any) -> ReplyT:
        """Send an operation and return its final reply."""

    @abstractmethod
    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation without waiting for its reply, if connected."""

    @abstractmethod
    def _perform(self, flow: flows.Flow[Reply]) -> ReplyT: ...

    @abstractmethod
    def _run(self, flow: flows.Flow[Result]) -> ResultT: ...

    def _feed_stdin(self, session: str | None, source: Stdin | None, then: OnStatus | None) -> OnStatus | None:
        """Return a callback that answers `need-input` from `source` and passes every status on."""
        if source is None:
            return then
        texts = [source] if isinstance(source, str) else None

        def on_status(reply: Reply) -> None:
            if "need-input" in (reply.status or ()):
                text = source() if callable(source) else texts.pop() if texts else None
                if text is not None:
                    self.send_nowait("stdin", {"session": reply.session or session, "input": text})
            if then is not None:
                then(reply)

        return on_status
