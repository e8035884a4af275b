"""Runs operations of extensions, each in a thread of its own: a slow one delays its caller alone.

To the broker an operation is one more connection, with the identity of its caller: what it asks for is admitted,
limited, judged by hooks and audited as if the caller had asked. A thread that does not end in time is abandoned; when
too many are, no operation is started until one of them returns.
"""

from __future__ import annotations

import inspect
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from replbroker.core.effects import RunOperation
from replbroker.core.operations.extension_ops import OperationOutcome
from replbroker.transports.connection_handler import Body
from replwire.ext.contracts import ExtensionOperation
from replwire.ext.operations import (
    OperationCall,
    OperationContext,
    OperationOutput,
    OperationRefused,
    OperationReplies,
)
from replwire.ext.registry import Registration
from replwire.ops import Request
from replwire.replies import decode

_MAX_ABANDONED: Final = 8
_RESULT_BYTES: Final = 1024 * 1024
_UNREAD_BYTES: Final = 16 * 1024 * 1024  # replies that an operation has not taken yet
_CALLER_FIELDS: Final = ("agent", "binding", "project", "mode")
_COMMON_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Request))
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class OperationStep(NamedTuple):
    """A step that an operation has taken. With none of the last three it was given up.

    Attributes:
        number: Number of the run.
        request: A request to the broker, encoded.
        output: Text for the caller.
        outcome: The end.
    """

    number: int
    request: bytes | None = None
    output: str | None = None
    outcome: OperationOutcome | None = None


class OperationRunner:
    """Threads of operations, and the transport by which they get replies.

    Args:
        find: Returns the registration of an operation.
        report: Called with a registration and an error, from the thread of the operation that failed.

    Attributes:
        fd: Readable once there are steps to take.
        prefix: First byte of the names of operations' connections.
    """

    prefix = b"x"

    def __init__(
        self, find: Callable[[str], Registration], report: Callable[[Registration, BaseException], None]
    ) -> None:
        self._find = find
        self._report = report
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._steps: deque[OperationStep] = deque()
        self._runs: dict[int, _OperationRun] = {}
        self._abandoned: list[_OperationRun] = []

    def start(self, effect: RunOperation) -> None:
        """Start an operation; `take_steps` returns what it does."""
        self._abandoned = [each for each in self._abandoned if each.thread.is_alive()]
        if len(self._abandoned) >= _MAX_ABANDONED:
            error = "operation-failed", "too many operations of extensions do not come back"
            self._add_step(OperationStep(effect.number, outcome=OperationOutcome(None, error)))
            return
        run = self._runs[effect.number] = _OperationRun(effect, self._find(effect.op), self._add_step, self._report)
        run.thread.start()

    def end(self, number: int) -> None:
        """Give up an operation: its thread ends at its next step."""
        run = self._runs.pop(number, None)
        if run is not None:
            run.give_up()
            self._abandoned.append(run)
            self._add_step(OperationStep(number))

    def principal_of(self, number: int) -> tuple[str, tuple[int, ...]] | None:
        """Return identity and groups of a run's caller, None if it was given up."""
        run = self._runs.get(number)
        return None if run is None else (run.effect.principal.identity, run.effect.principal.groups)

    def take_steps(self) -> list[OperationStep]:
        """Return the steps since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        steps = []
        while self._steps:
            steps.append(self._steps.popleft())
        for step in steps:
            if step.outcome is not None:
                self._runs.pop(step.number, None)
        return steps

    def _add_step(self, step: OperationStep) -> None:
        self._steps.append(step)
        os.eventfd_write(self.fd, 1)

    def peer_of(self, number: int) -> bytes:
        """Return the name of a run's connection."""
        return self.prefix + number.to_bytes(8)

    def close(self) -> None:
        """Give up every operation; a thread that does not return ends with the process."""
        for number in list(self._runs):
            self.end(number)

    # --- ReplyTransport ---

    def send(
        self,
        peer: bytes,
        body: Body,
        output_of: str | None = None,  # noqa: ARG002 - output counts like any reply, and is bounded with it
        first: Body | None = None,
        event: bool = False,  # noqa: ARG002
    ) -> bool:
        run = self._runs.get(int.from_bytes(peer[1:]))
        return run is not None and all(run.take_reply(bytes(each)) for each in (first, body) if each is not None)

    def hang_up(self, peer: bytes, *, at_once: bool = False) -> None:  # noqa: ARG002
        self.disconnect(peer)

    def disconnect(self, peer: bytes) -> None:
        run = self._runs.get(int.from_bytes(peer[1:]))
        if run is not None:
            run.replies.put(None)

    def pause(self, peer: bytes, until: float) -> None:
        """Do nothing: an operation has one request under way at a time."""

    def describe(self, peer: bytes) -> str:
        run = self._runs.get(int.from_bytes(peer[1:]))
        return "operation" if run is None else f"operation {run.effect.op}"


class _OperationFailed(Exception):
    """An operation has to end; the message is for its caller."""


class _OperationRun:
    """One run of an operation.

    Attributes:
        replies: Encoded replies to its request under way; None: it was given up.
    """

    def __init__(
        self,
        effect: RunOperation,
        registration: Registration,
        add_step: Callable[[OperationStep], None],
        report: Callable[[Registration, BaseException], None],
    ) -> None:
        self.effect = effect
        self._registration = registration
        self._add_step = add_step
        self._report = report
        self._requests = itertools.count(1)
        self._unread_bytes = 0
        self._lock = threading.Lock()
        self.replies: SimpleQueue[bytes | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"operation {effect.op}", daemon=True)

    # --- the loop's thread ---

    def take_reply(self, body: bytes) -> bool:
        """Queue a reply, and return whether there was room for it."""
        with self._lock:
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES:
                return False
        self.replies.put(body)
        return True

    def give_up(self) -> None:
        """Have the thread end at its next step."""
        self.replies.put(None)

    # --- the operation's thread ---

    def _run(self) -> None:
        error = None
        try:
            outcome = OperationOutcome(self._perform())
        except OperationRefused as refused:
            outcome = OperationOutcome(None, (refused.code, str(refused)))
        except _OperationFailed as failed:
            outcome = OperationOutcome(None, ("operation-failed", f"{self._registration.label}: {failed}"))
        except BaseException as caught:  # noqa: BLE001 - foreign code; `sys.exit` must not end the thread in silence
            error = caught
            why = f"{self._registration.label} failed: {type(caught).__name__}"
            outcome = OperationOutcome(None, ("operation-failed", why))
        if error is not None:
            self._report(self._registration, error)
        self._add_step(OperationStep(self.effect.number, outcome=outcome))

    def _perform(self) -> bytes:
        """Run the operation and return its result, encoded."""
        operation = self._registration.contribution
        assert isinstance(operation, ExtensionOperation)
        request = _decode_object(self.effect.body)
        arguments = _convert_arguments(operation, request)
        context = OperationContext(self.effect.principal.identity, request.get("agent"), request.get("session"))
        result = operation.run(arguments, context)
        if inspect.isgenerator(result):
            result = self._drive(result, {key: request[key] for key in _CALLER_FIELDS if key in request})
        encoded = msgspec.json.encode(result)
        if len(encoded) > _RESULT_BYTES:
            raise _OperationFailed(f"the result is longer than {_RESULT_BYTES} bytes")
        return encoded

    def _drive(self, steps: Any, caller: dict[str, Any]) -> Any:
        """Carry out what a generator yields, and return what it returns."""
        answer: OperationReplies | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(step, OperationOutput):
                self._add_step(OperationStep(self.effect.number, output=step.text))
            elif isinstance(step, OperationCall):
                answer = self._ask(step, caller)
            else:
                steps.close()
                raise TypeError(f"yielded {type(step).__name__}, not a call or output")

    def _ask(self, step: OperationCall, caller: dict[str, Any]) -> OperationReplies:
        request_id = str(next(self._requests))
        body = msgspec.json.encode({**step.fields, **caller, "id": request_id, "op": step.op})
        self._add_step(OperationStep(self.effect.number, request=body))
        found = []
        while True:
            try:
                reply = self.replies.get(timeout=max(0.0, self.effect.deadline - time.monotonic()))
            except Empty:
                reply = None
            if reply is None:
                raise _OperationFailed("its time was over, or its request was refused as a connection")
            with self._lock:
                self._unread_bytes -= len(reply)
            found.append(decode(reply))
            if (found[-1].status or [])[:1] == ["done"]:
                return OperationReplies(found)


def _convert_arguments(operation: ExtensionOperation, request: dict[str, Any]) -> Any:
    """Return the typed arguments of a request.

    Raises:
        OperationRefused: A field is missing, unknown or of another type.
    """
    names = {field.encode_name: field.encode_name for field in msgspec.structs.fields(operation.args)}
    by_wire_name = names | {name.replace("_", "-"): name for name in names}
    given = {
        by_wire_name.get(name, name): value
        for name, value in request.items()
        if name in by_wire_name or name not in _COMMON_FIELDS
    }
    try:
        return msgspec.convert(given, operation.args)
    except msgspec.ValidationError as error:
        raise OperationRefused(f"{operation.name}: {error}") from None
