"""`AsyncClient`: the methods of `Client`, awaited; many requests at a time over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from replctl.client import flows, protocol
from replctl.client.base import Stdin
from replctl.client.connect import connect
from replctl.client.errors import ReplError
from replctl.client.event_stream import events_in, subscribe_fields
from replctl.client.operations import Operations
from replctl.client.request_fields import eval_fields
from replctl.client.result import OnOutput, OnStatus, PendingRequest, Result
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Approval, EnvironmentEntry, JobEntry, Reply, SessionEntry

if TYPE_CHECKING:
    from replctl.client.transport import Transport

T = TypeVar("T")
OnRequest = Callable[[str], None]
OnApproval = Callable[[Approval], Awaitable[bool]]
MAX_QUEUED_EVENTS = 5000  # events queued for the iterating task; further ones are counted and dropped
MESSAGES_PER_TURN = 500  # messages processed before other tasks get a turn
RESEND_SECONDS = 0.01  # delay after a send found the pipe full, with a thousand messages in transit


class AsyncClient(Operations[Coroutine[Any, Any, Reply], Coroutine[Any, Any, Result]]):
    """Connection to one broker inside an event loop; open it with `async with`.

    Use it only in the event loop it was opened in. Cancelling a task that awaits `eval` does not end the eval: it keeps
    running in its session, `jobs` lists it and `interrupt` ends it. Arguments, results and errors are as in `Client`.
    """

    def _open(self) -> None:
        self.connection_count = 0  # connections so far; each may be to another broker
        self._connect_lock = asyncio.Lock()
        self._futures: dict[str, asyncio.Future[None]] = {}

    async def eval(
        self,
        code: str,
        session: str = DEFAULT_SESSION,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
        silent: bool = False,
        stdin: Stdin | None = None,
        on_status: OnStatus | None = None,
        on_request: OnRequest | None = None,
        on_approval: OnApproval | None = None,
        **options: Any,
    ) -> Result:
        """Run code in a session and return the result; see `Client.eval`.

        `on_request` receives the request id just before the request is sent: `interrupt` with `request_id` ends that
        eval and no other. An exception it raises is raised here, and nothing is sent. `on_approval` is awaited.
        """
        fields = eval_fields(code, session, timeout=timeout, wait=wait, silent=silent, **options)
        on_status = self._feed_stdin(fields["session"], stdin, on_status)
        return await self._drive(flows.evaluate(fields, on_output, on_status), on_request, on_approval)

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
        queued: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        ids: set[str] = set()
        missed = 0

        def on_status(reply: Reply) -> None:
            nonlocal missed
            ids.add(reply.id)
            for event in events_in(reply):
                if queued.qsize() >= MAX_QUEUED_EVENTS:
                    missed += 1
                    continue
                if missed:
                    queued.put_nowait({"type": "bus/lagged", "missed": missed})
                    missed = 0
                queued.put_nowait(event)

        fields = subscribe_fields(session, types, since, output)
        task = asyncio.create_task(self._exchange(flows.Exchange("subscribe", fields, None, None, on_status)))
        task.add_done_callback(lambda _: queued.put_nowait(None))
        try:
            while (event := await queued.get()) is not None:
                yield event
                if missed and queued.empty():
                    lagged, missed = missed, 0
                    yield {"type": "bus/lagged", "missed": lagged}
            protocol.final_reply(await task)
        finally:
            if not task.done():
                for request_id in ids:
                    self.send_nowait("unsubscribe", {"subscription": request_id})
            task.cancel()

    async def request(self, op: str, **fields: Any) -> Reply:
        """Send an operation and return its final reply. Raises ReplError if its status has `error`."""
        return await self._drive(flows.request(op, fields))

    async def _run(self, flow: flows.Flow[Result]) -> Result:
        return await self._drive(flow)

    async def _perform(self, flow: flows.Flow[Reply]) -> Reply:
        return await self._drive(flow)

    async def _drive(
        self, flow: flows.Flow[T], on_request: OnRequest | None = None, on_approval: OnApproval | None = None
    ) -> T:
        answer: Any = None
        with closing(flow):
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if isinstance(step, flows.Exchange):
                    answer = await self._exchange(step, on_request if step.op == "eval" else None)
                elif isinstance(step, flows.Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    answer = on_approval is not None and await on_approval(step)

    async def _exchange(self, step: flows.Exchange, on_request: OnRequest | None = None) -> PendingRequest:
        pending = await self.send(step.op, step.fields, step.on_output, step.on_status, on_request)
        await self.wait(pending, step.timeout)
        return pending

    # Below: low-level requests, used by the tools.

    async def send(
        self,
        op: str,
        fields: dict[str, Any],
        on_output: OnOutput | None = None,
        on_status: OnStatus | None = None,
        on_request: OnRequest | None = None,
    ) -> PendingRequest:
        """Send an operation and return the pending request; `wait` waits for its end."""
        transport = await self._connect()
        pending, body = self._protocol.send(op, fields, on_output, on_status)
        if len(body) > self._protocol.accepted_bytes:
            self._protocol.check_size(pending, body, (await self.describe()).limits)
            if pending.error is not None:  # the connection broke meanwhile
                raise pending.error
        self._futures[pending.request_id] = asyncio.get_running_loop().create_future()
        try:
            if on_request is not None:
                on_request(pending.request_id)
            while not transport.send(body):
                self._receive_available()
                if pending.error is not None:
                    break
                await asyncio.sleep(RESEND_SECONDS)
        except BaseException:  # cancelled, or an exception of `on_request`
            self._forget(pending)
            raise
        self._receive_available()  # a send may have consumed the edge that signals messages
        return pending

    async def wait(self, pending: PendingRequest, timeout: float | None = None) -> bool:
        """Wait for the end of a request, at most `timeout` seconds. Returns False if it was abandoned.

        Raises:
            ReplError: `broker-lost` if the connection broke, `no-broker` if it was never established or nobody replies.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._futures[pending.request_id]
        except TimeoutError:
            error = protocol.no_answer_error(self.address.endpoint, timeout)
            raise protocol.with_partial_result(pending, error) from None
        finally:
            self._forget(pending)
        if pending.error is not None:
            raise protocol.with_partial_result(pending, pending.error)
        return pending.final is not None

    def abandon(self, pending: PendingRequest) -> None:
        """Make a `wait` for this request return; later replies are dropped."""
        self._protocol.forget(pending)
        self._wake(pending)

    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation without waiting for its reply, if connected. Never blocks."""
        if self._transport is not None:
            self._transport.send(self._protocol.send(op, fields)[1])

    def _forget(self, pending: PendingRequest) -> None:
        self._protocol.forget(pending)
        self._futures.pop(pending.request_id, None)

    async def _connect(self) -> Transport:
        async with self._connect_lock:
            if self._transport is not None:
                self._receive_available()
            if self._transport is None:
                loop = asyncio.get_running_loop()
                transport = await loop.run_in_executor(
                    None, connect, self.address, self._start, self._on_start, self._key
                )
                self._transport = transport
                self.connection_count += 1
                for descriptor in transport.descriptors:
                    loop.add_reader(descriptor, self._receive_available)
            return self._transport

    def _receive_available(self) -> None:
        """Process the messages that have arrived, and detect the end of the connection."""
        transport = self._transport
        if transport is None:
            return
        closed = transport.is_closed()
        try:
            for _ in range(MESSAGES_PER_TURN):
                if (body := transport.receive_nowait()) is None:
                    break
                if (ended := self._protocol.receive(body)) is not None:
                    self._wake(ended)
            else:
                asyncio.get_running_loop().call_soon(self._receive_available)
                return
        except ReplError as error:
            self._close_transport(error)
            return
        if closed:
            self._close_transport(transport.closed_error())

    def _wake(self, pending: PendingRequest) -> None:
        future = self._futures.get(pending.request_id)
        if future is not None and not future.done():
            future.set_result(None)

    def _close_transport(self, why: ReplError) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            for descriptor in transport.descriptors:
                asyncio.get_running_loop().remove_reader(descriptor)
            transport.close()
        for pending in self._protocol.connection_lost(why):
            self._wake(pending)

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
