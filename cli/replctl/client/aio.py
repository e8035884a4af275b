"""`AsyncClient`: the methods of `Client`, awaited; many requests at a time over one connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from replctl.client import protocol, request_fields
from replctl.client.address import Address, resolve
from replctl.client.errors import ReplError
from replctl.client.event_stream import events_in, subscribe_fields
from replctl.client.operations import Operations
from replctl.client.project import project_at
from replctl.client.result import OnOutput, OnStatus, OutputPages, PendingRequest, Result
from replctl.client.sync import DEFAULT_TIMEOUT, UNBOUNDED_OPS, connect
from replctl.client.transport import Transport
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Approval, EnvironmentEntry, JobEntry, Reply, SessionEntry

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady

OnRequest = Callable[[str], None]
OnApproval = Callable[[Approval], Awaitable[bool]]
MAX_QUEUED_EVENTS = 5000  # events queued for the iterating task; further ones are counted and dropped
MESSAGES_PER_TURN = 500  # messages processed before other tasks get a turn
RESEND_SECONDS = 0.01  # delay after a send found the pipe full, with a thousand messages in transit


class AsyncClient(Operations[Awaitable[Reply]]):
    """Connection to one broker inside an event loop; open it with `async with`.

    Use it only in the event loop it was opened in. Cancelling a task that awaits `eval` does not end the eval: it keeps
    running in its session, `jobs` lists it and `interrupt` ends it. Arguments, results and errors are those of
    `Client`.
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
    ) -> None:
        self.address: Address = resolve(endpoint, os.environ, os.getuid())
        self.agent = agent
        self._key = key
        self._start = start
        self._on_start = on_start
        project = project_at(self.address, directory)
        self._protocol = protocol.ClientProtocol(agent, os.urandom(4).hex() + "-", project, on_mismatch)
        self._transport: Transport | None = None
        self.connection_count = 0  # connections so far; each may be to another broker
        self._connect_lock = asyncio.Lock()
        self._futures: dict[str, asyncio.Future[None]] = {}

    @property
    def broker_version(self) -> str | None:
        """The broker's version if it differs from this client's; None before the first reply."""
        return self._protocol.broker_version

    async def eval(
        self,
        code: str,
        session: str = DEFAULT_SESSION,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
        silent: bool = False,
        stdin: str | Callable[[], str | None] | None = None,
        on_status: OnStatus | None = None,
        on_request: OnRequest | None = None,
        on_approval: OnApproval | None = None,
        **options: Any,
    ) -> Result:
        """Run code in a session and return the result; see `Client.eval`.

        `on_request` receives the request id just before the request is sent: `interrupt` with `request_id` ends that
        eval and no other. An exception it raises is raised here, and nothing is sent. `on_approval` is awaited.
        """
        fields = request_fields.eval_fields(code, session, timeout=timeout, wait=wait, silent=silent, **options)
        if stdin is not None:
            on_status = self._stdin_feeder(session, stdin, on_status)
        while True:
            gathering = await self.exchange("eval", fields, None, on_output, on_status, on_request)
            try:
                result = protocol.eval_result(gathering)
                break
            except ReplError as error:
                if error.approval is None or on_approval is None or not await on_approval(error.approval):
                    raise
                fields["approval"] = error.approval.id
        if (
            gathering.dropped_bytes
            and result.session is not None
            and result.eval_id is not None
            and not result.ephemeral
        ):
            whole = OutputPages()
            while whole.add(
                await self.read(result.session, result.eval_id, offset=whole.offset, max_bytes=OutputPages.BYTES)
            ):
                pass
            gathering.fill_gaps(whole)
        return result

    async def read(
        self,
        session: str,
        eval_id: int,
        wait: float | None = None,
        offset: int = 0,
        stream: str = "both",
        max_bytes: int | None = None,
        grep: str | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Return an eval's output and result, waiting up to `wait` seconds for its end; see `Client.read`."""
        fields = request_fields.read_fields(session, eval_id, wait, offset, stream, max_bytes, grep)
        return protocol.eval_result(await self.exchange("read", fields, DEFAULT_TIMEOUT + (wait or 0), on_output))

    async def load(
        self,
        file: str,
        session: str | None = DEFAULT_SESSION,
        reload: bool = False,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a file on the broker's machine; see `Client.load`."""
        op, fields = request_fields.load_fields(file, session, reload, timeout, wait)
        return protocol.eval_result(await self.exchange(op, fields, None, on_output))

    async def packages(
        self,
        action: str,
        packages: Sequence[str] = (),
        session: str = DEFAULT_SESSION,
        path: str | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Manage the packages of the session's environment; see `Client.packages`."""
        fields = request_fields.package_fields(action, packages, session, path)
        return protocol.eval_result(await self.exchange("env", fields, None, on_output))

    async def sessions(self) -> list[SessionEntry]:
        """Return all visible sessions of the broker."""
        return (await self.request("ls-sessions")).sessions or []

    async def environments(self) -> list[EnvironmentEntry]:
        """Return the named environments that the broker keeps; see `Client.environments`."""
        return (await self.request("ls-environments")).environments or []

    async def jobs(self, session: str = DEFAULT_SESSION) -> list[JobEntry]:
        """Return the session's queued, running and recent evals."""
        return (await self.request("jobs", session=session)).jobs or []

    async def info(self, session: str = DEFAULT_SESSION, variables: bool = True) -> dict[str, Any]:
        """Return a session's details; see `Client.info`."""
        return (await self.request("info", session=session, variables=None if variables else False)).info or {}

    async def stats(self) -> dict[str, Any]:
        """Return the broker's counters, queue, worker pool and agents."""
        return (await self.request("stats")).stats or {}

    async def events(
        self, session: str | None = None, types: Sequence[str] = (), since: int | None = None, output: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events as they happen; see `Client.events`. Missed events are reported by `bus/lagged`, not fetched."""
        heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        ids: set[str] = set()
        missed = 0

        def on_status(reply: Reply) -> None:
            nonlocal missed
            ids.add(reply.id)
            for event in events_in(reply):
                if heard.qsize() >= MAX_QUEUED_EVENTS:
                    missed += 1
                    continue
                if missed:
                    heard.put_nowait({"type": "bus/lagged", "missed": missed})
                    missed = 0
                heard.put_nowait(event)

        asking = self.exchange("subscribe", subscribe_fields(session, types, since, output), None, None, on_status)
        task = asyncio.create_task(asking)
        task.add_done_callback(lambda _: heard.put_nowait(None))
        try:
            while (event := await heard.get()) is not None:
                yield event
                if missed and heard.empty():
                    told, missed = missed, 0
                    yield {"type": "bus/lagged", "missed": told}
            protocol.final_reply(await task)
        finally:
            if not task.done() and self._transport is not None:
                for request_id in ids:
                    self._transport.send(self._protocol.send("unsubscribe", {"subscription": request_id})[1])
            task.cancel()

    async def request(self, op: str, **fields: Any) -> Reply:
        """Send an operation and return its final reply. Raises ReplError if its status has `error`."""
        return protocol.final_reply(await self.exchange(op, fields, None if op in UNBOUNDED_OPS else DEFAULT_TIMEOUT))

    # Below: low-level requests, used by the tools.

    async def exchange(
        self,
        op: str,
        fields: dict[str, Any],
        timeout: float | None,
        on_output: OnOutput | None = None,
        on_status: OnStatus | None = None,
        on_request: OnRequest | None = None,
    ) -> PendingRequest:
        """Send an operation and wait for its end, at most `timeout` seconds (None: no limit)."""
        gathering = await self.send(op, fields, on_output, on_status, on_request)
        await self.wait(gathering, timeout)
        return gathering

    async def send(
        self,
        op: str,
        fields: dict[str, Any],
        on_output: OnOutput | None = None,
        on_status: OnStatus | None = None,
        on_request: OnRequest | None = None,
    ) -> PendingRequest:
        """Send an operation and return the pending request; `wait` waits for its end."""
        line = await self._connect()
        gathering, body = self._protocol.send(op, fields, on_output, on_status)
        if len(body) > protocol.ALWAYS_ACCEPTED_BYTES:
            self._protocol.check_size(gathering, body, (await self.describe()).limits)
            if gathering.error is not None:  # the connection broke meanwhile
                raise gathering.error
        self._futures[gathering.request_id] = asyncio.get_running_loop().create_future()
        try:
            if on_request is not None:
                on_request(gathering.request_id)
            while not line.send(body):
                self._receive_available()
                if gathering.error is not None:
                    break
                await asyncio.sleep(RESEND_SECONDS)
        except BaseException:  # cancelled, or an exception of `on_request`
            self._forget(gathering)
            raise
        self._receive_available()  # a send may have consumed the edge that signals messages
        return gathering

    async def wait(self, gathering: PendingRequest, timeout: float | None = None) -> bool:
        """Wait for the end of a request, at most `timeout` seconds. Returns False if it was abandoned.

        Raises:
            ReplError: `broker-lost` if the connection broke, `no-broker` if it was never established or nobody replies.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._futures[gathering.request_id]
        except TimeoutError:
            raise protocol.with_partial_result(
                gathering, protocol.no_answer_error(self.address.endpoint, timeout)
            ) from None
        finally:
            self._forget(gathering)
        if gathering.error is not None:
            raise protocol.with_partial_result(gathering, gathering.error)
        return gathering.final is not None

    def abandon(self, gathering: PendingRequest) -> None:
        """Make a `wait` for this request return; later replies are dropped."""
        self._protocol.forget(gathering)
        self._wake(gathering)

    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation without waiting for its reply, if connected. Never blocks."""
        if self._transport is not None:
            self._transport.send(self._protocol.send(op, fields)[1])

    def _forget(self, gathering: PendingRequest) -> None:
        self._protocol.forget(gathering)
        self._futures.pop(gathering.request_id, None)

    async def _connect(self) -> Transport:
        async with self._connect_lock:
            if self._transport is not None:
                self._receive_available()
            if self._transport is None:
                loop = asyncio.get_running_loop()
                line = await loop.run_in_executor(None, connect, self.address, self._start, self._on_start, self._key)
                self._transport = line
                self.connection_count += 1
                for descriptor in line.descriptors:
                    loop.add_reader(descriptor, self._receive_available)
            return self._transport

    def _receive_available(self) -> None:
        """Process the messages that have arrived, and detect the end of the connection."""
        line = self._transport
        if line is None:
            return
        gone = line.is_closed()
        try:
            for _ in range(MESSAGES_PER_TURN):
                if (body := line.receive_nowait()) is None:
                    break
                if (ended := self._protocol.receive(body)) is not None:
                    self._wake(ended)
            else:
                asyncio.get_running_loop().call_soon(self._receive_available)
                return
        except ReplError as error:
            self._close_transport(error)
            return
        if gone:
            word, what = ("broker-lost", "went away") if line.connected else ("no-broker", "does not reply")
            if line.unauthorized:
                word, what = (
                    "unauthorized",
                    "refused this client's key: set REPLCTL_KEY_FILE to the file of an authorized key",
                )
            self._close_transport(ReplError(word, f"the broker at {self.address.endpoint} {what}"))

    def _wake(self, gathering: PendingRequest) -> None:
        done = self._futures.get(gathering.request_id)
        if done is not None and not done.done():
            done.set_result(None)

    def _close_transport(self, why: ReplError) -> None:
        line, self._transport = self._transport, None
        if line is not None:
            for descriptor in line.descriptors:
                asyncio.get_running_loop().remove_reader(descriptor)
            line.close()
        for gathering in self._protocol.connection_lost(why):
            self._wake(gathering)

    def _stdin_feeder(self, session: str, source: str | Callable[[], str | None], then: OnStatus | None) -> OnStatus:
        texts = [source] if isinstance(source, str) else None

        def on_status(reply: Reply) -> None:
            if "need-input" in (reply.status or ()):
                text = source() if callable(source) else texts.pop() if texts else None
                if text is not None:
                    self.send_nowait("stdin", {"session": reply.session or session, "input": text})
            if then is not None:
                then(reply)

        return on_status

    async def disconnect(self) -> None:
        """Close the connection. Sessions keep running."""
        self._close_transport(ReplError("broker-lost", "this client was closed"))

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.disconnect()
