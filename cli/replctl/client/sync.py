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
DEFAULT_TIMEOUT = 30.0  # seconds for an answer that waits for no code; the broker's own bounds are well below
UNBOUNDED_OPS = ("clone", "env")  # operations that take as long as they take
SHUTDOWN_SECONDS = 10.0  # for a broker that ends to be gone, so that another can be started
HANDSHAKE_SECONDS = 2.0  # for one that is there to say so; a busy one is waited for by the request
RETRY_SECONDS = 0.02
INTERRUPT_TIMEOUT = 5.0  # how long Ctrl-C in a program waits for the interrupted eval's end


class Client(Operations[Reply]):
    """A conversation with one broker, which is started when none answers (`start=False`: it is not).

    For one thread: another one opens its own. A broker that went away is an error once, `broker-lost`; the next
    request finds the new one. Times are in seconds. Every method raises ReplError for what the broker refuses. The
    session `default` is that of the project that `directory` belongs to; without one, of the agent. `on_mismatch` is
    told in a sentence, once a connection, that the broker is of another version.
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
        """The broker's version, when it is another than this client's; None before the first answer."""
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
        """Run code in a session and return how it ended.

        `timeout` bounds how long the code may run, `wait` how long its end is awaited: past it the result is
        `running`, to be read later. `on_output(stream, text)` gets live text, `stdin` answers `input()`: a text once,
        or a function that is asked each time. `on_approval` is asked when a hook wants a person to decide: when it says
        yes the code is sent again. `options` are those of `calls.eval_fields` (`create=True`, `ephemeral=False`,
        `runtime`, `cwd`, `env`, `expect_epoch`, `idempotency_key`, `mime`, `allow_stdin`, `traceparent`).
        Ctrl-C interrupts the eval, waits up to 5 s for its end and raises KeyboardInterrupt.
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
            if (sent := gathering or self._protocol.latest) is not None:  # it may have left before `begin` came back
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
        """Output and answer of an eval from `offset` on, waiting up to `wait` seconds for its end."""
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
        """Run a file that the broker's machine has, below a folder that its config allows. `reload` forgets first
        what the file defined before. Ends as `eval` does."""
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
        """`add`, `remove`, `list` or `install` packages of the session's environment, or run its `test`s. The tool's
        output is the result's; it ends as an eval does."""
        gathering = self.send("env", request_fields.package_fields(action, packages, session, path), on_output)
        self.wait(gathering)
        return protocol.eval_result(gathering)

    def sessions(self) -> list[SessionEntry]:
        """All sessions of the broker."""
        return self.request("ls-sessions").sessions or []

    def environments(self) -> list[EnvironmentEntry]:
        """The named environments that the broker keeps: one's own, for admins everybody's."""
        return self.request("ls-environments").environments or []

    def jobs(self, session: str = DEFAULT_SESSION) -> list[JobEntry]:
        """The session's queued, running and recent evals."""
        return self.request("jobs", session=session).jobs or []

    def info(self, session: str = DEFAULT_SESSION, variables: bool = True) -> dict[str, Any]:
        """What there is to know of a session."""
        return self.request("info", session=session, variables=None if variables else False).info or {}

    def stats(self) -> dict[str, Any]:
        """Counters, queue, pool and agents of the broker."""
        return self.request("stats").stats or {}

    def events(
        self, session: str | None = None, types: Sequence[str] = (), since: int | None = None, output: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Events of a session, or of all that may be read, as they happen; it ends with the session or the broker.

        `types` are names or prefixes such as `eval/`, `since` the number after which to begin, `output` adds live
        output. What a slow reader misses is told by `bus/lagged`, and for a session fetched as far as it is kept.
        """
        return iterate_events(self, session, types, since, output)

    def abandon(self, gathering: PendingRequest) -> None:
        """Wait no more for the end of a request."""
        self._protocol.forget(gathering)

    # Below: for those who drive a request themselves (the command line, the prompt).

    def request(self, op: str, **fields: Any) -> Reply:
        """Send an operation and return its last reply. Raises ReplError when that says `error`."""
        gathering = self.send(op, fields)
        self.wait(gathering, None if op in UNBOUNDED_OPS else DEFAULT_TIMEOUT)
        return protocol.final_reply(gathering)

    def send(
        self, op: str, fields: dict[str, Any], on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> PendingRequest:
        """Send an operation and return what gathers its answer; `finish` waits for it."""
        if self._transport is None or self._transport.is_closed():
            self._close_transport()
            self._transport = connect(self.address, self._start, self._on_start, self._key)
        gathering, body = self._protocol.send(op, fields, on_output, on_status)
        if len(body) > protocol.ALWAYS_ACCEPTED_BYTES:
            self._protocol.check_size(gathering, body, self.describe().limits)
        if not self._transport.send(body):
            self._close_transport()  # marks it as cut: `finish` says so
        return gathering

    def send_nowait(self, op: str, fields: dict[str, Any]) -> None:
        """Send an operation whose answer nobody waits for, if the connection stands. Fit for a signal handler."""
        if self._transport is not None:
            self._transport.send(self._protocol.send(op, fields)[1])

    def wait(
        self, gathering: PendingRequest, timeout: float | None = None, watch: InputDescriptor | None = None
    ) -> bool:
        """Wait for the end of a request, at most `patience` seconds. False: the descriptor `watch()` can be read.

        Raises ReplError `broker-lost` when the connection broke, `no-broker` when it never stood or nobody answers.
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
        """Hear one message, waiting for it until `deadline` (monotonic seconds) or until `watch` can be read.

        False when there was none.
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
        """Complete an ended eval's output from the session when live output was dropped on the way."""
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
        """Wait until the broker has gone; False when it has not within `seconds`."""
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
                pass  # the KeyboardInterrupt is what the caller hears of

    def _close_transport(self) -> None:
        if self._transport is not None:
            word, what = ("broker-lost", "went away") if self._transport.connected else ("no-broker", "does not answer")
            if self._transport.unauthorized:
                word, what = "unauthorized", "does not let us in: a key that it knows goes into REPLCTL_KEY_FILE"
            self._transport.close()
            self._transport = None
            self._protocol.connection_lost(ReplError(word, f"the broker at {self.address.endpoint} {what}"))

    def disconnect(self) -> None:
        """End the connection. Sessions live on."""
        self._close_transport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close_transport()


def _milliseconds_left(deadline: float | None) -> int | None:
    """Milliseconds until then, rounded up: 0 is when it has passed, and not a moment before."""
    return None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))


class _StdinFeeder:
    """Answers `need-input` from what the caller gave, and hands every status on."""

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
    """A line to the broker at this address, which is started when none listens and `start` allows it.

    `key` is a client's key file, else the one that REPLCTL_KEY_FILE names; it is for endpoints over TCP.
    Raises ReplError `no-broker`, and `unauthorized` for a key file that cannot be used.
    """
    path = ipc_path(address.endpoint)
    if address.source == "default" and path and (why := directory_problem(os.path.dirname(path), os.getuid())):
        raise ReplError("no-broker", f"the socket's folder cannot be trusted: {why}")
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    while True:
        if not is_listening(address.endpoint):
            if not start:
                raise ReplError("no-broker", f"no broker answers at {address.endpoint}")
            from replctl.client.start import ensure_broker  # most calls find a broker and need none of this

            started = ensure_broker(address.endpoint, os.environ)
            if started is not None and on_start is not None:
                on_start(started)
        line = Transport(address.endpoint, _client_key(address, key))
        if path is None or not start or line.wait_for_handshake(HANDSHAKE_SECONDS) or time.monotonic() > deadline:
            return line
        line.close()  # a broker that ends hung up before a word was said: the next one is ours to find, or to start
        time.sleep(RETRY_SECONDS)


def _client_key(address: Address, key: str | None) -> ClientKey | None:
    path = key or os.environ.get("REPLCTL_KEY_FILE")
    if not path or not address.endpoint.startswith("tcp://"):
        return None
    from replwire.keys import InvalidKey, read_client_key  # few have one

    try:
        return read_client_key(path)
    except InvalidKey as error:
        raise ReplError("unauthorized", str(error)) from None
