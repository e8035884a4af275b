"""The client's half of the protocol without a socket: requests to bytes, bytes to the request they answer."""

from __future__ import annotations

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

ALWAYS_ACCEPTED_BYTES = (
    64 * 1024
)  # bytes of a request that no broker hangs up on: what is as much over its bound it answers

_encode = msgspec.json.Encoder().encode

# Ends of an eval that was accepted and ran: they belong into its result, with the output that it made.
_EVAL_OUTCOMES = (
    ExitCode.OK,
    ExitCode.RAISED,
    ExitCode.TIMED_OUT,
    ExitCode.INTERRUPTED,
    ExitCode.WORKER_LOST,
    ExitCode.RUNNING,
)


class ClientProtocol:
    """One connection's conversation. `prefix` makes its request ids its own; not for two threads at once. `project` is
    the directory whose default session `default` means. `on_mismatch` is told, once a connection, that the broker is of
    another version."""

    def __init__(
        self,
        agent: str | None,
        prefix: str,
        project: str | None = None,
        on_mismatch: Callable[[str], None] | None = None,
    ) -> None:
        self._agent = agent
        self._prefix = prefix
        self._project = project
        self._on_mismatch = on_mismatch
        self.broker_version: str | None = None  # when it is another than ours
        self._has_reply = False  # whether anything has come over this connection
        self._count = 0
        self._pending: dict[str, PendingRequest] = {}
        self.latest: PendingRequest | None = None  # of the request that was made last

    def send(
        self, op: str, fields: dict[str, Any], on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> tuple[PendingRequest, bytes]:
        """A request as bytes, and what will gather its replies. Fields that are None stay off the wire.

        Raises UnknownFieldError for a field that the operation does not have.
        """
        check_fields(op, fields)
        self._count += 1
        request_id = f"{self._prefix}{self._count:x}"
        message: dict[str, Any] = {"id": request_id, "op": op}
        if self._agent is not None:
            message["agent"] = self._agent
        if not self._has_reply:
            message["client-version"] = __version__
        if self._project is not None and _depends_on_project(op, fields):
            fields = {**fields, **self._project_fields(op, fields)}
        for key, value in fields.items():
            if value is not None:
                message[key.replace("_", "-")] = value
        try:
            body = _encode(message)
        except (TypeError, ValueError) as error:  # a lone surrogate, or what is no JSON at all
            raise ReplError("invalid-request", f"cannot be sent as JSON: {error}") from None
        gathering = self.latest = PendingRequest(request_id, fields.get("session"), on_output, on_status)
        self._pending[request_id] = gathering
        return gathering, body

    def _project_fields(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields that say whose default session is meant; one that is opened has its project as its directory."""
        named = fields.get("cwd") is not None and fields.get("cwd_needed") is not False
        opens = op in ("eval", "new-session") and not named
        return {"project": self._project} | ({"cwd": self._project, "cwd_needed": False} if opens else {})

    def check_size(self, gathering: PendingRequest, body: bytes, limits: dict[str, Any] | None) -> None:
        """Give up a request that is over the broker's bound, which would end the connection for all that use it.

        Raises ReplError `message-too-large`.
        """
        most = (limits or {}).get("max-message-bytes", len(body))
        if len(body) > most:
            self.forget(gathering)
            err = f"a request of {len(body)} bytes exceeds maximum size of {most} bytes (max-message-bytes = {most})"
            raise ReplError("message-too-large", err)

    def receive(self, body: bytes) -> PendingRequest | None:
        """Give a message to the request it answers. Returns that request's gathering when this ended it.

        A message for a request that nobody waits for any more is dropped. Raises ReplError when the other side
        does not speak this protocol, or could not read what was sent.
        """
        try:
            reply = decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ReplError("no-broker", f"what answers is no replctl broker: {error}") from None
        if not self._has_reply:
            self._on_first_reply(reply)
        gathering = self._pending.get(reply.id)
        if gathering is None:
            if not reply.id and reply.status and "error" in reply.status:
                raise error_from_reply(reply)  # it could not be read far enough to find its id
            return None
        if not gathering.add(reply):
            return None
        del self._pending[reply.id]
        return gathering

    def _on_first_reply(self, first: Reply) -> None:
        """Take the first message of a connection: which version the broker is, when it is another than ours."""
        self._has_reply = True
        self.broker_version = first.broker_version
        if first.broker_version is not None and self._on_mismatch is not None:
            from replctl.client.versions import describe_mismatch  # mostly there is none

            self._on_mismatch(describe_mismatch(__version__, first.broker_version))

    def forget(self, gathering: PendingRequest) -> None:
        """Drop what still comes for this request."""
        self._pending.pop(gathering.request_id, None)

    def connection_lost(self, why: ReplError) -> list[PendingRequest]:
        """The connection is gone: mark every open request as `cut` and return them."""
        self._has_reply = False
        lost = list(self._pending.values())
        self._pending.clear()
        for gathering in lost:
            gathering.error = why
        return lost


def _depends_on_project(op: str, fields: dict[str, Any]) -> bool:
    """Whether a request means a default session, or asks what it is called."""
    references = (fields.get("session"), fields.get("name") if op in ("new-session", "clone") else None)
    return op == "ls-sessions" or any(each and split_reference(each)[1] == DEFAULT_SESSION for each in references)


def final_reply(gathering: PendingRequest) -> Reply:
    """The last reply of an ended request. Raises ReplError when it says `error`."""
    last = gathering.final
    assert last is not None, "asked before the end"
    if "error" in (last.status or ()):
        raise error_from_reply(last)
    return last


def eval_result(gathering: PendingRequest) -> Result:
    """The result of an ended eval or read.

    How the code ended is in the result, whatever it was. Raises ReplError when it was refused, or when the broker
    failed.
    """
    last = gathering.final
    assert last is not None, "asked before the end"
    status = last.status or []
    if exit_code_for(status) not in _EVAL_OUTCOMES or last.correlation_id is not None:
        raise error_from_reply(last, gathering.result)
    return gathering.result


def with_partial_result(gathering: PendingRequest, error: ReplError) -> ReplError:
    """`error`, with what had come for this request until then."""
    return ReplError(error.code, error.message, error.reply, error.exit, gathering.finalize())


def no_answer_error(endpoint: str, seconds: float | None) -> ReplError:
    """The error for a broker that is connected and says nothing."""
    what = "it is stopped or overloaded, and what it was asked may still be done"
    return ReplError("no-broker", f"no answer in {seconds or 0:g} s from the broker at {endpoint}: {what}")
