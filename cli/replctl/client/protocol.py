"""The client side of the protocol without a socket: encodes requests, assigns replies to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from replctl import __version__
from replctl.client.errors import ReplError, error_from_reply
from replctl.client.fields import check_fields
from replctl.client.result import OnOutput, OnStatus, PendingRequest, Result
from replwire.faults import ExitCode, exit_code_for
from replwire.identifiers import DEFAULT_SESSION, split_reference
from replwire.replies import Reply, decode

ALWAYS_ACCEPTED_BYTES = 64 * 1024  # requests up to this size always get a reply, even if over the broker's limit

_encode = msgspec.json.Encoder().encode

# Outcomes of an eval that ran: they are part of its result, with its output.
_EVAL_OUTCOMES = (
    ExitCode.OK,
    ExitCode.RAISED,
    ExitCode.TIMED_OUT,
    ExitCode.INTERRUPTED,
    ExitCode.WORKER_LOST,
    ExitCode.RUNNING,
)


class ClientProtocol:
    """State of one connection's requests. Not thread-safe.

    Args:
        agent: Agent label of the requests.
        prefix: Makes this connection's request ids unique.
        project: The directory whose default session `default` means.
        on_mismatch: Called once per connection with a sentence if the broker has another version.
        binding: Label of the interface that the agent is used through.
    """

    def __init__(
        self,
        agent: str | None,
        prefix: str,
        project: str | None = None,
        on_mismatch: Callable[[str], None] | None = None,
        binding: str | None = None,
    ) -> None:
        self._agent = agent
        self._binding = binding
        self._prefix = prefix
        self._project = project
        self._on_mismatch = on_mismatch
        self.broker_version: str | None = None  # if it differs from this client's
        self._has_reply = False  # a reply has arrived over this connection
        self.accepted_bytes = ALWAYS_ACCEPTED_BYTES  # of a request that the broker is known to accept
        self._count = 0
        self._pending: dict[str, PendingRequest] = {}
        self.latest: PendingRequest | None = None  # the last request

    def send(
        self, op: str, fields: dict[str, Any], on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> tuple[PendingRequest, bytes]:
        """Encode a request. Returns it as pending request and bytes. Fields that are None are left out.

        Raises:
            UnknownFieldError: The operation does not have this field.
        """
        check_fields(op, fields)
        self._count += 1
        request_id = f"{self._prefix}{self._count:x}"
        message: dict[str, Any] = {"id": request_id, "op": op}
        if self._agent is not None:
            message["agent"] = self._agent
        if self._binding is not None:
            message["binding"] = self._binding
        if not self._has_reply:
            message["client-version"] = __version__
        if self._project is not None and _depends_on_project(op, fields):
            fields = {**fields, **self._project_fields(op, fields)}
        for key, value in fields.items():
            if value is not None:
                message[key.replace("_", "-")] = value
        try:
            body = _encode(message)
        except (TypeError, ValueError) as error:  # a lone surrogate, or an unsupported type
            raise ReplError("invalid-request", f"cannot be sent as JSON: {error}") from None
        pending = self.latest = PendingRequest(request_id, fields.get("session"), on_output, on_status)
        self._pending[request_id] = pending
        return pending, body

    def _project_fields(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that identify the project; a session that is created gets the project as its directory."""
        named = fields.get("cwd") is not None and fields.get("cwd_needed") is not False
        opens = op in ("eval", "new-session") and not named
        return {"project": self._project} | ({"cwd": self._project, "cwd_needed": False} if opens else {})

    def check_size(self, pending: PendingRequest, body: bytes, limits: dict[str, Any] | None) -> None:
        """Abandon a request over the broker's size limit, which would end the connection for all its users.

        Raises:
            ReplError: `message-too-large`.
        """
        most = self.accepted_bytes = (limits or {}).get("max-message-bytes", len(body))
        if len(body) > most:
            self.forget(pending)
            err = f"a request of {len(body)} bytes exceeds maximum size of {most} bytes (max-message-bytes = {most})"
            raise ReplError("message-too-large", err)

    def receive(self, body: bytes) -> PendingRequest | None:
        """Assign a message to its request. Returns the request if this message ended it.

        A message for an abandoned request is dropped.

        Raises:
            ReplError: The other side does not speak this protocol, or could not read a request.
        """
        try:
            reply = decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ReplError("no-broker", f"the reply is not from a replctl broker: {error}") from None
        if not self._has_reply:
            self._on_first_reply(reply)
        pending = self._pending.get(reply.id)
        if pending is None:
            if not reply.id and reply.status and "error" in reply.status:
                raise error_from_reply(reply)  # the broker could not read the request's id
            return None
        if not pending.add(reply):
            return None
        del self._pending[reply.id]
        return pending

    def _on_first_reply(self, first: Reply) -> None:
        """Read the broker's version from the first reply of a connection."""
        self._has_reply = True
        self.broker_version = first.broker_version
        if first.broker_version is not None and self._on_mismatch is not None:
            self._on_mismatch(describe_mismatch(__version__, first.broker_version))

    def forget(self, pending: PendingRequest) -> None:
        """Drop later replies to this request."""
        self._pending.pop(pending.request_id, None)

    def connection_lost(self, why: ReplError) -> list[PendingRequest]:
        """Mark every open request as failed after the connection was lost, and return them."""
        self._has_reply = False
        self.accepted_bytes = ALWAYS_ACCEPTED_BYTES
        lost = list(self._pending.values())
        self._pending.clear()
        for pending in lost:
            pending.error = why
        return lost


def _depends_on_project(op: str, fields: dict[str, Any]) -> bool:
    """Return True if a request refers to a default session, or lists session names."""
    references = (fields.get("session"), fields.get("name") if op in ("new-session", "clone", "branch") else None)
    return op == "ls-sessions" or any(each and split_reference(each)[1] == DEFAULT_SESSION for each in references)


def final_reply(pending: PendingRequest) -> Reply:
    """Return the final reply of a finished request. Raises ReplError if its status has `error`."""
    last = pending.final
    assert last is not None, "the request has not ended"
    if "error" in (last.status or ()):
        raise error_from_reply(last)
    return last


def eval_result(pending: PendingRequest) -> Result:
    """Return the result of a finished eval or read, whatever the outcome of the code.

    Raises:
        ReplError: The request was refused, or the broker failed.
    """
    last = pending.final
    assert last is not None, "the request has not ended"
    status = last.status or []
    if exit_code_for(status) not in _EVAL_OUTCOMES or last.correlation_id is not None:
        raise error_from_reply(last, pending.result)
    return pending.result


def with_partial_result(pending: PendingRequest, error: ReplError) -> ReplError:
    """Return `error` with the output and result received so far."""
    return ReplError(error.code, error.message, error.reply, error.exit, pending.finalize())


def no_answer_error(endpoint: str, seconds: float | None) -> ReplError:
    """Return the error for a broker that is connected but does not reply."""
    what = "it is stopped or overloaded, and may still execute the request"
    return ReplError("no-broker", f"no reply within {seconds or 0:g} s from the broker at {endpoint}: {what}")


def describe_mismatch(ours: str, theirs: str) -> str:
    """Describe which of the two versions is older and how to fix it."""
    restart = "`replctl shutdown` stops it with its sessions, and the next command starts the new version"
    here, there = _release(ours), _release(theirs)
    if here > there:
        return f"the broker (replctl {theirs}) is older than this client ({ours}): {restart}"
    if here < there:
        return f"this client ({ours}) is older than the broker (replctl {theirs}): upgrade it, or restart its program"
    advice = f"upgrade the client or restart the broker ({restart})"
    return f"the broker is replctl {theirs} and this client is {ours}: {advice}"


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version, without trailing zeros."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
