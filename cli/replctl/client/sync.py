"""`Client`: a broker's sessions from ordinary code. One socket, no thread, no event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from replctl.client import flows, protocol
from replctl.client.base import Stdin
from replctl.client.connect import connect
from replctl.client.errors import ReplError
from replctl.client.event_stream import iterate_events
from replctl.client.operations import Operations
from replctl.client.request_fields import eval_fields
from replctl.client.result import OnOutput, OnStatus, PendingRequest, Result
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Approval, EnvironmentEntry, JobEntry, Reply, SessionEntry

if TYPE_CHECKING:
    pass

T = TypeVar("T")
InputDescriptor = Callable[[], int | None]
INTERRUPT_TIMEOUT = 5.0  # wait for the end of an eval after Ctrl-C


class Client(Operations[Reply, Result]):
    """Connection to one broker, which is started if none is running.

    Not thread-safe: each thread needs its own. If the broker goes away, one call raises `broker-lost`, and the next
    connects to its successor. Times are in seconds. Every method raises ReplError if the broker refuses.
    The arguments are those of `BaseClient`.
    """

    def _open(self) -> None:
        self._transport = connect(self.address, self._start, self._on_start, self._key)

    def eval(
        self,
        code: str,
        session: str = DEFAULT_SESSION,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
        silent: bool = False,
        stdin: Stdin | None = None,
        on_status: OnStatus | None = None,
        on_approval: Callable[[Approval], bool] | None = None,
        **options: Any,
    ) -> Result:
        """Run code in a session and return the result.

        Ctrl-C interrupts the eval, waits up to 5 s for its end and raises KeyboardInterrupt.

        Args:
            code: The code to run.
            session: Name or id of the session, which is created if it does not exist.
            timeout: Limit of the run time in seconds.
            wait: Limit of the wait in seconds; the result is then `running`, and `read` gets the rest.
            on_output: Called with the stream (`out` or `err`) and the text as it arrives.
            silent: Do not send the value.
            stdin: Answers `input()`: a text, used once, or a function called each time.
            on_status: Called with each intermediate reply that has a status.
            on_approval: Decides when a hook asks for a person's approval; the code is sent again after a yes.
            options: Further options: `create=True`, `ephemeral=False`, `runtime`, `cwd`, `env`, `expect_epoch`,
                `idempotency_key`, `mime`, `allow_stdin`, `traceparent`.

        Returns:
            The result, whatever the outcome of the code.

        Raises:
            ReplError: The broker refused the eval, or went away.
        """
        fields = eval_fields(code, session, timeout=timeout, wait=wait, silent=silent, **options)
        on_status = self._feed_stdin(fields["session"], stdin, on_status)
        return self._drive(flows.evaluate(fields, on_output, on_status), on_approval)

    def sessions(self) -> list[SessionEntry]:
        """Return all visible sessions of the broker."""
        return self.request("ls-sessions").sessions or []

    def environments(self) -> list[EnvironmentEntry]:
        """Return the named environments that the broker keeps: the caller's, or everyone's for an administrator."""
        return self.request("ls-environments").environments or []

    def jobs(self, session: str = DEFAULT_SESSION) -> list[JobEntry]:
        """Return the session's queued, running and recent evals."""
        return self.request("jobs", session=session).jobs or []

    def info(self, session: str = DEFAULT_SESSION, variables: bool = True) -> dict[str, Any]:
        """Return a session's details: runtime, state, limits, memory and, if `variables` is true, its variables."""
        return self.request("info", session=session, variables=None if variables else False).info or {}

    def stats(self) -> dict[str, Any]:
        """Return the broker's counters, queue, worker pool and agents."""
        return self.request("stats").stats or {}

    def events(
        self, session: str | None = None, types: Sequence[str] = (), since: int | None = None, output: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield events as they happen, until the session or the broker ends.

        Args:
            session: Only events of this session; None for all sessions that may be read.
            types: Event types, or prefixes such as `eval/`.
            since: Number of the last event already seen; needs a session.
            output: Include live output.

        Yields:
            Events. Events missed by a slow reader are reported by `bus/lagged`, and for a session fetched as far as the
            broker keeps them.
        """
        return iterate_events(self, session, types, since, output)

    def request(self, op: str, **fields: Any) -> Reply:
        """Send an operation and return its final reply. Raises ReplError if its status has `error`."""
        return self._drive(flows.request(op, fields))

    def _run(self, flow: flows.Flow[Result]) -> Result:
        return self._drive(flow)

    def _perform(self, flow: flows.Flow[Reply]) -> Reply:
        return self._drive(flow)

    def _drive(self, flow: flows.Flow[T], on_approval: Callable[[Approval], bool] | None = None) -> T:
        answer: Any = None
        with closing(flow):
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if isinstance(step, flows.Exchange):
                    answer = self._exchange(step)
                elif isinstance(step, flows.Pause):
                    time.sleep(step.seconds)
                else:
                    answer = on_approval is not None and on_approval(step)

    def _exchange(self, step: flows.Exchange) -> PendingRequest:
        pending = None
        try:
            pending = self.send(step.op, step.fields, step.on_output, step.on_status)
            self.wait(pending, step.timeout)
        except KeyboardInterrupt:
            sent = pending or self._protocol.latest  # it may have been sent before `send` returned
            if step.op == "eval" and sent is not None:
                self._interrupt_and_wait(sent)
            raise
        return pending

    # Below: low-level requests, used by the command line.

    def send(
        self, op: str, fields: dict[str, Any], on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> PendingRequest:
        """Send an operation and return the pending request; `wait` waits for its end."""
        if self._transport is None or self._transport.is_closed():
            self._close_transport()
            self._transport = connect(self.address, self._start, self._on_start, self._key)
        pending, body = self._protocol.send(op, fields, on_output, on_status)
        if len(body) > self._protocol.accepted_bytes:
            self._protocol.check_size(pending, body, self.describe().limits)
        if not self._transport.send(body):
            self._close_transport()  # marks the request as failed: `wait` raises
        return pending

    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation without waiting for its reply, if connected. Safe in a signal handler."""
        if self._transport is not None:
            self._transport.send(self._protocol.send(op, fields)[1])

    def wait(self, pending: PendingRequest, timeout: float | None = None, watch: InputDescriptor | None = None) -> bool:
        """Wait for the end of a request.

        Args:
            pending: The pending request.
            timeout: Limit in seconds; None for no limit.
            watch: Returns a descriptor to wait for as well, or None.

        Returns:
            False if the descriptor is readable, True at the end of the request.

        Raises:
            ReplError: `broker-lost` if the connection broke, `no-broker` if it was never established or nobody replies.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while pending.final is None:
            if pending.error is not None:
                raise protocol.with_partial_result(pending, pending.error)
            if self.poll(deadline, None if watch is None else watch()):
                continue
            if deadline is None or time.monotonic() < deadline:
                return False
            self._protocol.forget(pending)
            error = protocol.no_answer_error(self.address.endpoint, timeout)
            raise protocol.with_partial_result(pending, error)
        return True

    def poll(self, deadline: float | None, watch: int | None = None) -> bool:
        """Receive one message, waiting until `deadline` (monotonic seconds) or until `watch` is readable.

        Returns False if there was none.
        """
        transport = self._transport
        if transport is None:
            return True
        left = _milliseconds_left(deadline)
        while (body := transport.receive_nowait() if watch is not None else transport.receive(left)) is None:
            if transport.is_closed():
                if (body := transport.receive_nowait()) is not None:
                    break
                self._close_transport()
                return True
            left = _milliseconds_left(deadline)
            if left == 0 or (watch is not None and transport.wait(left, watch)):
                return False
        self._protocol.receive(body)
        return True

    def abandon(self, pending: PendingRequest) -> None:
        """Stop waiting for the end of a request."""
        self._protocol.forget(pending)

    def fetch_dropped(self, pending: PendingRequest) -> None:
        """Fetch live output that was dropped on the way to this client, once the eval has ended."""
        self._drive(flows.fetch_dropped(pending))

    def wait_for_shutdown(self, seconds: float) -> bool:
        """Wait until the broker has exited. Returns False if it has not within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._transport is not None:
            if not self.poll(deadline):
                return False
        return True

    def _interrupt_and_wait(self, pending: PendingRequest) -> None:
        if pending.final is None:
            try:
                self.send("interrupt", {"request_id": pending.request_id})
                self.wait(pending, INTERRUPT_TIMEOUT)
            except ReplError:
                pass  # the caller gets the KeyboardInterrupt

    def _close_transport(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            self._protocol.connection_lost(transport.closed_error())

    def disconnect(self) -> None:
        """Close the connection. Sessions keep running."""
        self._close_transport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close_transport()


def _milliseconds_left(deadline: float | None) -> int | None:
    """Return the milliseconds until the deadline, rounded up: 0 only once it has passed."""
    return None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))
