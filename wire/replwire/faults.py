"""All status words of the protocol: meaning, origin, retry and exit code.

`docs/faults.md`, the client's exit codes and the broker's error replies are all derived from this table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Origin(enum.StrEnum):
    """The party that has to act to resolve an error."""

    CALLER = "caller"
    CODE = "code"
    WORKER = "worker"
    BROKER = "broker"


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; part of its contract (`docs/faults.md`)."""

    OK = 0
    RAISED = 1
    USAGE = 2
    NO_BROKER = 3
    NAME = 4
    REFUSED = 5
    TIMED_OUT = 6
    INTERRUPTED = 7
    WORKER_LOST = 8
    RUNNING = 9


EXIT_MEANING = {
    ExitCode.OK: "done",
    ExitCode.RAISED: "the code raised",
    ExitCode.USAGE: "invalid usage or request",
    ExitCode.NO_BROKER: "the broker is not reachable, was lost, or failed",
    ExitCode.NAME: "no such session or eval, or the name is taken",
    ExitCode.REFUSED: "refused by a limit or policy",
    ExitCode.TIMED_OUT: "the code exceeded its time limit",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.WORKER_LOST: "the session's worker was lost or reset while the code ran",
    ExitCode.RUNNING: "still running: the result can be read later",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """An error code: a status word that appears beside `error`."""

    code: str
    meaning: str
    origin: Origin
    retry: bool
    exit: ExitCode


@dataclass(frozen=True, slots=True)
class StatusWord:
    """A status word that is not an error."""

    code: str
    meaning: str
    terminal: bool


_CALLER, _CODE, _WORKER, _BROKER = Origin.CALLER, Origin.CODE, Origin.WORKER, Origin.BROKER

FAULTS: dict[str, Fault] = {
    fault.code: fault
    for fault in (
        Fault("malformed-request", "not a JSON object", _CALLER, False, ExitCode.USAGE),
        Fault(
            "invalid-request", "a field is missing, of the wrong type or out of range", _CALLER, False, ExitCode.USAGE
        ),
        Fault("missing-code", "eval without `code`", _CALLER, False, ExitCode.USAGE),
        Fault("unknown-op", "there is no such operation", _CALLER, False, ExitCode.USAGE),
        Fault("not-supported", "the operation does not exist for this runtime or kind", _CALLER, False, ExitCode.USAGE),
        Fault(
            "message-too-large", "longer than `max-message-bytes` or another limit", _CALLER, False, ExitCode.REFUSED
        ),
        Fault("session-not-found", "there is no session with this name or id", _CALLER, False, ExitCode.NAME),
        Fault("session-already-exists", "the name is taken", _CALLER, False, ExitCode.NAME),
        Fault(
            "eval-not-found",
            "there is no such eval in this session, or its output was dropped",
            _CALLER,
            False,
            ExitCode.NAME,
        ),
        Fault("epoch-conflict", "the session's epoch is not `expect-epoch`", _CALLER, False, ExitCode.NAME),
        Fault(
            "checkpoint-not-found",
            "the session has no checkpoint with this number or name, or none right before its last eval",
            _CALLER,
            False,
            ExitCode.NAME,
        ),
        Fault("checkpoint-already-exists", "the session has a checkpoint of this name", _CALLER, False, ExitCode.NAME),
        Fault(
            "checkpoint-limit-reached",
            "the session has `max-checkpoints` checkpoints with a name",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault(
            "checkpoint-failed",
            "the state could not be kept or restored; the session is as before",
            _CODE,
            True,
            ExitCode.RAISED,
        ),
        Fault(
            "idempotency-conflict",
            "the key was used with different code, or its eval was undone",
            _CALLER,
            False,
            ExitCode.NAME,
        ),
        Fault("session-limit-reached", "`max-sessions` sessions are open", _CALLER, True, ExitCode.REFUSED),
        Fault(
            "memory-limit-reached",
            "sessions use all permitted memory, or the machine has too little left",
            _CALLER,
            True,
            ExitCode.REFUSED,
        ),
        Fault(
            "environment-limit-reached",
            "the broker, or the identity, has its maximum of named environments",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("environment-not-found", "there is no named environment with this name", _CALLER, False, ExitCode.NAME),
        Fault("environment-in-use", "sessions use this named environment", _CALLER, False, ExitCode.REFUSED),
        Fault("concurrency-limit-reached", "the eval queue is full", _CALLER, True, ExitCode.REFUSED),
        Fault(
            "rate-limited",
            "more requests in a minute than `rate-limit-per-min`, or more bytes than `max-request-bytes-per-s`",
            _CALLER,
            True,
            ExitCode.REFUSED,
        ),
        Fault("connection-limit-reached", "`max-connections` clients are connected", _CALLER, True, ExitCode.REFUSED),
        Fault("stdin-buffer-full", "unread input has reached `max-stdin-bytes`", _CALLER, True, ExitCode.REFUSED),
        Fault("runtime-not-allowed", "the runtime is not available", _CALLER, False, ExitCode.REFUSED),
        Fault(
            "unauthorized",
            "not authenticated: unknown key or token",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("forbidden", "the agent or identity is not permitted to do this", _CALLER, False, ExitCode.REFUSED),
        Fault(
            "plan-mode",
            "the operation would change something, and the client or session is in plan mode",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("operation-failed", "an operation of an extension failed", _BROKER, False, ExitCode.REFUSED),
        Fault("hook-blocked", "a hook of an extension blocked the operation", _CALLER, False, ExitCode.REFUSED),
        Fault(
            "approval-needed",
            "a person has to approve: show `approval`, then resend the request with its id",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault(
            "path-not-allowed",
            "not below a directory of `session.load-paths`, or not permitted to the session",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("file-not-found", "there is no such file in a permitted directory", _CALLER, False, ExitCode.NAME),
        Fault("io-error", "the file could not be read or written", _BROKER, True, ExitCode.REFUSED),
        Fault("invalid-config", "the config file is invalid; nothing has changed", _CALLER, False, ExitCode.USAGE),
        Fault(
            "environment-failed",
            "the environment could not be used or deleted; nothing has changed",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault(
            "clone-failed", "the session could not be copied; no new session was created", _CODE, False, ExitCode.RAISED
        ),
        Fault(
            "snapshot-not-found",
            "there is no such snapshot: its last part was fetched, or no part was for `transfer-idle-ms`",
            _CALLER,
            False,
            ExitCode.NAME,
        ),
        Fault(
            "snapshot-failed",
            "the snapshot could not be written, is damaged, or does not fit this broker; no session was created",
            _CODE,
            False,
            ExitCode.RAISED,
        ),
        Fault(
            "sandbox-unavailable",
            "this machine cannot provide the configured sandbox",
            _BROKER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("timeout", "exceeded its time limit while running or queued", _CODE, True, ExitCode.TIMED_OUT),
        Fault("session-reset", "the session was reset before this ended", _CALLER, True, ExitCode.WORKER_LOST),
        Fault("worker-lost", "the session's worker died; `cause` says why", _WORKER, True, ExitCode.WORKER_LOST),
        Fault(
            "busy", "the session is running an eval, and the operation needs it idle", _CALLER, True, ExitCode.REFUSED
        ),
        Fault("shutdown", "the broker is shutting down", _BROKER, True, ExitCode.NO_BROKER),
        Fault(
            "internal-error",
            "internal error of the broker; find it in the log by `correlation-id`",
            _BROKER,
            True,
            ExitCode.NO_BROKER,
        ),
        # The two below come from the client library; without a broker they never occur on the wire.
        Fault("no-broker", "no broker is reachable at the endpoint", _BROKER, True, ExitCode.NO_BROKER),
        Fault("broker-lost", "the broker was lost before it replied", _BROKER, True, ExitCode.NO_BROKER),
    )
}

STATUSES: dict[str, StatusWord] = {
    status.code: status
    for status in (
        StatusWord("done", "last message for this request id", True),
        StatusWord("error", "failed; `err` has the message, and a word of the table of faults the error code", True),
        StatusWord("interrupted", "ended by an interrupt; not an error", True),
        StatusWord("running", "the wait is over but the code still runs: read it later by `eval-id`", True),
        StatusWord("pong", "reply to ping", True),
        StatusWord("session-closed", "the session was closed as requested", True),
        StatusWord("shutdown-started", "the broker is shutting down", True),
        StatusWord("queued", "not running yet; `queue-position` is the number of evals before it", False),
        StatusWord("subscribed", "events follow under this id, until `unsubscribe`", False),
        StatusWord("need-input", "the code waits for input: send it with `stdin`", False),
        StatusWord(
            "output-dropped",
            "this client reads too slowly; `dropped-bytes` of live output were not sent to it, `read` has them",
            False,
        ),
    )
}


def find_fault(status: list[str]) -> Fault | None:
    """Return the fault named in a status array, or None. `error` alone means that the code raised."""
    for code in status:
        if (fault := FAULTS.get(code)) is not None:
            return fault
    return None


def exit_code_for(status: list[str]) -> ExitCode:
    """Return the exit code for a terminal status array."""
    if (fault := find_fault(status)) is not None:
        return fault.exit
    if "error" in status:
        return ExitCode.RAISED
    if "interrupted" in status:
        return ExitCode.INTERRUPTED
    return ExitCode.RUNNING if "running" in status else ExitCode.OK


_MOST_TEXT = 1_000


def clip(text: str) -> str:
    """Truncate a message that quotes user input to 1000 characters."""
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"


class RequestError(Exception):
    """A request that cannot be served.

    `code` is an error code of the table, `fields` are further fields of the reply.
    """

    def __init__(self, code: str, err: str, **more: Any) -> None:
        super().__init__(err)
        self.code = FAULTS[code].code
        self.message = clip(err)
        self.fields = more
