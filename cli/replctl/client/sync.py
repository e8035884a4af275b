"""`Client`: a broker's sessions from ordinary code. One socket, no thread, no event loop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from replctl.client import protocol, request_fields
from replctl.client.address import Address, directory_problem, is_listening, resolve
from replctl.client.errors import ReplError
from replctl.client.event_stream import iterate_events
from replctl.client.operations import Operations
from replctl.client.project import project_at
from replctl.client.result import OnOutput, OnStatus, OutputPages, PendingRequest, Result
from replctl.client.transport import Transport
from replwire.identifiers import DEFAULT_SESSION
from replwire.paths import ipc_path
from replwire.replies import Approval, EnvironmentEntry, JobEntry, Reply, SessionEntry

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady
    from replwire.keys import ClientKey

InputDescriptor = Callable[[], int | None]
DEFAULT_TIMEOUT = 30.0  # seconds for a reply that does not depend on code; the broker's own limits are lower
UNBOUNDED_OPS = ("clone", "env")  # operations without a time limit
SHUTDOWN_SECONDS = 10.0  # time for a stopping broker to exit before a new one is started
HANDSHAKE_SECONDS = 2.0  # time for the handshake; the request itself waits for a busy broker
RETRY_SECONDS = 0.02
INTERRUPT_TIMEOUT = 5.0  # wait for the end of an eval after Ctrl-C


class Client(Operations[Reply]):
    """Connection to one broker, which is started if none is running.

    Not thread-safe: each thread needs its own. If the broker goes away, one call raises `broker-lost`, and the next
    connects to its successor. Times are in seconds. Every method raises ReplError if the broker refuses.

    Args:
        endpoint: Address of the broker; None for REPLCTL_ENDPOINT, the config file or the user's socket.
        agent: Agent label, used for fair scheduling.
        start: Start a broker if none is running.
        on_start: Called with the ready message of a broker that was started.
        key: Client key file for endpoints over TCP; None for REPLCTL_KEY_FILE.
        directory: The session `default` is that of this directory's project; None for that of the agent.
        on_mismatch: Called once per connection with a sentence if the broker has another version.
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
        self._transport: Transport | None = connect(self.address, start, on_start, key)

    @property
    def broker_version(self) -> str | None:
        """The broker's version if it differs from this client's; None before the first reply."""
        return self._protocol.broker_version

    def eval(
        self,
        code: str,
        session: str = DEFAULT_SESSION,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
        silent: bool = False,
        stdin: str | Callable[[], str | None] | None = None,
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
        fields = request_fields.eval_fields(code, session, timeout=timeout, wait=wait, silent=silent, **options)
        while True:
            try:
                return self._eval(fields, on_output, stdin, on_status)
            except ReplError as error:
                if error.approval is None or on_approval is None or not on_approval(error.approval):
                    raise
                fields["approval"] = error.approval.id

    def _eval(
        self,
        fields: dict[str, Any],
        on_output: OnOutput | None,
        stdin: str | Callable[[], str | None] | None,
        on_status: OnStatus | None,
    ) -> Result:
        feed = _StdinFeeder(self, fields["session"], stdin, on_status)
        gathering = None
        try:
            gathering = self.send("eval", fields, on_output, feed if stdin is not None else on_status)
            self.wait(gathering)
        except KeyboardInterrupt:
            if (sent := gathering or self._protocol.latest) is not None:  # it may have been sent before `send` returned
                self._interrupt_and_wait(sent)
            raise
        result = protocol.eval_result(gathering)
        self.fetch_dropped(gathering)
        return result

    def read(
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
        """Return an eval's output and result, waiting up to `wait` seconds for its end.

        Args:
            session: Name or id of the session.
            eval_id: Number of the eval; 0 for output printed between evals.
            wait: Seconds to wait for the end.
            offset: First byte of output to return.
            stream: `out`, `err` or `both`.
            max_bytes: Limit of the output's size.
            grep: Return only lines with this text.
            on_output: Called with the stream and the text as it arrives.
        """
        fields = request_fields.read_fields(session, eval_id, wait, offset, stream, max_bytes, grep)
        gathering = self.send("read", fields, on_output)
        self.wait(gathering, DEFAULT_TIMEOUT + (wait or 0))
        return protocol.eval_result(gathering)

    def load(
        self,
        file: str,
        session: str | None = DEFAULT_SESSION,
        reload: bool = False,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a file on the broker's machine, below a directory that its config allows.

        Args:
            file: Absolute path of the file.
            session: Name or id of the session.
            reload: First delete what the file defined before.
            timeout: Limit of the run time in seconds.
            wait: Limit of the wait in seconds.
            on_output: Called with the stream and the text as it arrives.
        """
        op, fields = request_fields.load_fields(file, session, reload, timeout, wait)
        gathering = self.send(op, fields, on_output)
        self.wait(gathering)
        return protocol.eval_result(gathering)

    def packages(
        self,
        action: str,
        packages: Sequence[str] = (),
        session: str = DEFAULT_SESSION,
        path: str | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a package tool in the session's environment; its output is the result's.

        Args:
            action: `add`, `remove`, `list`, `install` or `test`.
            packages: Names of packages to add or remove.
            session: Name or id of the session.
            path: For `install`, the lock or project file.
            on_output: Called with the stream and the text as it arrives.
        """
        gathering = self.send("env", request_fields.package_fields(action, packages, session, path), on_output)
        self.wait(gathering)
        return protocol.eval_result(gathering)

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

    def abandon(self, gathering: PendingRequest) -> None:
        """Stop waiting for the end of a request."""
        self._protocol.forget(gathering)

    # Below: low-level requests, used by the command line.

    def request(self, op: str, **fields: Any) -> Reply:
        """Send an operation and return its final reply. Raises ReplError if its status has `error`."""
        gathering = self.send(op, fields)
        self.wait(gathering, None if op in UNBOUNDED_OPS else DEFAULT_TIMEOUT)
        return protocol.final_reply(gathering)

    def send(
        self, op: str, fields: dict[str, Any], on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> PendingRequest:
        """Send an operation and return the pending request; `wait` waits for its end."""
        if self._transport is None or self._transport.is_closed():
            self._close_transport()
            self._transport = connect(self.address, self._start, self._on_start, self._key)
        gathering, body = self._protocol.send(op, fields, on_output, on_status)
        if len(body) > protocol.ALWAYS_ACCEPTED_BYTES:
            self._protocol.check_size(gathering, body, self.describe().limits)
        if not self._transport.send(body):
            self._close_transport()  # marks the request as failed: `wait` raises
        return gathering

    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation without waiting for its reply, if connected. Safe in a signal handler."""
        if self._transport is not None:
            self._transport.send(self._protocol.send(op, fields)[1])

    def wait(
        self, gathering: PendingRequest, timeout: float | None = None, watch: InputDescriptor | None = None
    ) -> bool:
        """Wait for the end of a request.

        Args:
            gathering: The pending request.
            timeout: Limit in seconds; None for no limit.
            watch: Returns a descriptor to wait for as well, or None.

        Returns:
            False if the descriptor is readable, True at the end of the request.

        Raises:
            ReplError: `broker-lost` if the connection broke, `no-broker` if it was never established or nobody replies.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while gathering.final is None:
            if gathering.error is not None:
                raise protocol.with_partial_result(gathering, gathering.error)
            if self.poll(deadline, None if watch is None else watch()):
                continue
            if deadline is None or time.monotonic() < deadline:
                return False
            self._protocol.forget(gathering)
            raise protocol.with_partial_result(gathering, protocol.no_answer_error(self.address.endpoint, timeout))
        return True

    def poll(self, deadline: float | None, watch: int | None = None) -> bool:
        """Receive one message, waiting until `deadline` (monotonic seconds) or until `watch` is readable.

        Returns False if there was none.
        """
        line = self._transport
        if line is None:
            return True
        left = _milliseconds_left(deadline)
        while (body := line.receive_nowait() if watch is not None else line.receive(left)) is None:
            if line.is_closed():
                if (body := line.receive_nowait()) is not None:
                    break
                self._close_transport()
                return True
            left = _milliseconds_left(deadline)
            if left == 0 or (watch is not None and line.wait(left, watch)):
                return False
        self._protocol.receive(body)
        return True

    def fetch_dropped(self, gathering: PendingRequest) -> None:
        """Fetch live output that was dropped on the way to this client, once the eval has ended."""
        result = gathering.result
        if (
            gathering.dropped_bytes
            and result.session is not None
            and result.eval_id is not None
            and not result.ephemeral
        ):
            whole = OutputPages()
            while whole.add(
                self.read(result.session, result.eval_id, offset=whole.offset, max_bytes=OutputPages.BYTES)
            ):
                pass
            gathering.fill_gaps(whole)

    def wait_for_shutdown(self, seconds: float) -> bool:
        """Wait until the broker has exited. Returns False if it has not within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._transport is not None:
            if not self.poll(deadline):
                return False
        return True

    def _interrupt_and_wait(self, gathering: PendingRequest) -> None:
        if gathering.final is None:
            try:
                self.send("interrupt", {"request_id": gathering.request_id})
                self.wait(gathering, INTERRUPT_TIMEOUT)
            except ReplError:
                pass  # the caller gets the KeyboardInterrupt

    def _close_transport(self) -> None:
        if self._transport is not None:
            word, what = ("broker-lost", "went away") if self._transport.connected else ("no-broker", "does not reply")
            if self._transport.unauthorized:
                word, what = (
                    "unauthorized",
                    "refused this client's key: set REPLCTL_KEY_FILE to the file of an authorized key",
                )
            self._transport.close()
            self._transport = None
            self._protocol.connection_lost(ReplError(word, f"the broker at {self.address.endpoint} {what}"))

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


class _StdinFeeder:
    """Answers `need-input` with the caller's text and passes every status on."""

    def __init__(
        self, client: Client, session: str | None, source: str | Callable[[], str | None] | None, then: OnStatus | None
    ) -> None:
        self._client, self._session, self._source, self._then = client, session, source, then

    def __call__(self, reply: Reply) -> None:
        if "need-input" in (reply.status or ()):
            text, self._source = (
                (self._source, None)
                if isinstance(self._source, str)
                else (self._source() if self._source else None, self._source)
            )
            if text is not None:
                self._client.send_nowait("stdin", {"session": reply.session or self._session, "input": text})
        if self._then is not None:
            self._then(reply)


def connect(
    address: Address, start: bool, on_start: Callable[[BrokerReady], None] | None, key: str | None = None
) -> Transport:
    """Connect to the broker at this address, starting it if none listens and `start` allows it.

    Args:
        address: Where the broker is.
        start: Start a broker if none is running.
        on_start: Called with the ready message of a broker that was started.
        key: Client key file, else that of REPLCTL_KEY_FILE; used for endpoints over TCP.

    Raises:
        ReplError: `no-broker`, or `unauthorized` for an unusable key file.
    """
    path = ipc_path(address.endpoint)
    if address.source == "default" and path and (why := directory_problem(os.path.dirname(path), os.getuid())):
        raise ReplError("no-broker", f"the socket's directory cannot be trusted: {why}")
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    while True:
        if not is_listening(address.endpoint):
            if not start:
                raise ReplError("no-broker", f"no broker is running at {address.endpoint}")
            from replctl.client.start import ensure_broker  # most calls find a running broker

            started = ensure_broker(address.endpoint, os.environ)
            if started is not None and on_start is not None:
                on_start(started)
        line = Transport(address.endpoint, _client_key(address, key))
        if path is None or not start or line.wait_for_handshake(HANDSHAKE_SECONDS) or time.monotonic() > deadline:
            return line
        line.close()  # a stopping broker closed before the handshake: find or start the next one
        time.sleep(RETRY_SECONDS)


def _client_key(address: Address, key: str | None) -> ClientKey | None:
    path = key or os.environ.get("REPLCTL_KEY_FILE")
    if not path or not address.endpoint.startswith("tcp://"):
        return None
    from replwire.keys import InvalidKey, read_client_key  # few users have a key

    try:
        return read_client_key(path)
    except InvalidKey as error:
        raise ReplError("unauthorized", str(error)) from None
