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
    ExitCode.USAGE: "usage, or a request that is not well formed",
    ExitCode.NO_BROKER: "no broker answers, or it went away or failed",
    ExitCode.NAME: "no such session or eval, or the name is taken",
    ExitCode.REFUSED: "refused by a limit or a policy",
    ExitCode.TIMED_OUT: "the code ran past its time limit",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.WORKER_LOST: "the session's worker was lost or reset while the code ran",
    ExitCode.RUNNING: "still running: the answer can be read later",
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
        Fault("malformed-request", "not one JSON object", _CALLER, False, ExitCode.USAGE),
        Fault(
            "invalid-request", "a field is missing, of the wrong type or out of range", _CALLER, False, ExitCode.USAGE
        ),
        Fault("missing-code", "eval without `code`", _CALLER, False, ExitCode.USAGE),
        Fault("unknown-op", "no operation of this name", _CALLER, False, ExitCode.USAGE),
        Fault("not-supported", "the operation does not exist for this runtime or kind", _CALLER, False, ExitCode.USAGE),
        Fault("message-too-large", "longer than `max-message-bytes`", _CALLER, False, ExitCode.REFUSED),
        Fault("session-not-found", "no session of this name or id", _CALLER, False, ExitCode.NAME),
        Fault("session-already-exists", "the name is taken", _CALLER, False, ExitCode.NAME),
        Fault(
            "eval-not-found", "no such eval in this session, or its output was given up", _CALLER, False, ExitCode.NAME
        ),
        Fault(
            "epoch-conflict", "the session is not in the epoch that `expect-epoch` names", _CALLER, False, ExitCode.NAME
        ),
        Fault("idempotency-conflict", "the key was used for other code", _CALLER, False, ExitCode.NAME),
        Fault("session-limit-reached", "as many sessions as `max-sessions` allows", _CALLER, True, ExitCode.REFUSED),
        Fault(
            "memory-limit-reached",
            "sessions use the memory that they may, or the machine has too little left",
            _CALLER,
            True,
            ExitCode.REFUSED,
        ),
        Fault(
            "environment-limit-reached",
            "as many named environments as the broker, or one identity, may have",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("environment-not-found", "no named environment of this name", _CALLER, False, ExitCode.NAME),
        Fault("environment-in-use", "sessions have this named environment", _CALLER, False, ExitCode.REFUSED),
        Fault("concurrency-limit-reached", "the queue for evals is full", _CALLER, True, ExitCode.REFUSED),
        Fault(
            "rate-limited",
            "more requests in a minute than `rate-limit-per-min`, or more bytes than `max-request-bytes-per-s`",
            _CALLER,
            True,
            ExitCode.REFUSED,
        ),
        Fault(
            "connection-limit-reached", "as many clients as `max-connections` allows", _CALLER, True, ExitCode.REFUSED
        ),
        Fault("stdin-buffer-full", "unread input has reached `max-stdin-bytes`", _CALLER, True, ExitCode.REFUSED),
        Fault("runtime-not-allowed", "no such runtime here", _CALLER, False, ExitCode.REFUSED),
        Fault(
            "unauthorized",
            "nobody vouches for this client: no key or token that is known",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("forbidden", "this agent or this identity may not do that", _CALLER, False, ExitCode.REFUSED),
        Fault(
            "plan-mode",
            "it would change something, and the client or the session is in plan mode",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault(
            "hook-blocked", "a hook of the broker's extensions does not let it run", _CALLER, False, ExitCode.REFUSED
        ),
        Fault(
            "approval-needed",
            "a hook wants a person to decide: `approval` says what; send it again with its id",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault(
            "path-not-allowed",
            "not below a folder of `session.load-paths`, or not readable",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("file-not-found", "no such file below the folders that may be read", _CALLER, False, ExitCode.NAME),
        Fault("io-error", "the file could not be read", _BROKER, True, ExitCode.REFUSED),
        Fault("invalid-config", "the config file cannot be used; nothing has changed", _CALLER, False, ExitCode.USAGE),
        Fault(
            "environment-failed",
            "the environment could not be used, or removed; nothing has changed",
            _CALLER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("clone-failed", "the session could not be copied; there is no new one", _CODE, False, ExitCode.RAISED),
        Fault(
            "sandbox-unavailable",
            "this machine cannot give the sandbox that the config asks for",
            _BROKER,
            False,
            ExitCode.REFUSED,
        ),
        Fault("timeout", "ran, or waited to run, past its time limit", _CODE, True, ExitCode.TIMED_OUT),
        Fault("session-reset", "the session was reset before this ended", _CALLER, True, ExitCode.WORKER_LOST),
        Fault("worker-lost", "the session's process died; `cause` says how", _WORKER, True, ExitCode.WORKER_LOST),
        Fault("busy", "the session is running an eval, and this needs it idle", _CALLER, True, ExitCode.REFUSED),
        Fault("shutdown", "the broker is shutting down", _BROKER, True, ExitCode.NO_BROKER),
        Fault(
            "internal-error",
            "a defect of the broker; `correlation-id` finds it in its log",
            _BROKER,
            True,
            ExitCode.NO_BROKER,
        ),
        # The two below come from the client library; without a broker they never occur on the wire.
        Fault("no-broker", "no broker answers at the endpoint", _BROKER, True, ExitCode.NO_BROKER),
        Fault("broker-lost", "the broker went away before it answered", _BROKER, True, ExitCode.NO_BROKER),
    )
}

STATUSES: dict[str, StatusWord] = {
    status.code: status
    for status in (
        StatusWord("done", "the last message for this request id", True),
        StatusWord(
            "error", "it failed; `err` says why in a sentence, and a word from the table of faults names it", True
        ),
        StatusWord("interrupted", "ended by an interrupt; not an error", True),
        StatusWord("running", "the wait is over, the code is not: read it later by `eval-id`", True),
        StatusWord("pong", "answer to ping", True),
        StatusWord("session-closed", "the session is gone, as asked", True),
        StatusWord("shutdown-started", "the broker ends once this is said", True),
        StatusWord("queued", "not yet running; `queue-position` says how many evals go before it", False),
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
    for word in status:
        if (fault := FAULTS.get(word)) is not None:
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

    def __init__(self, word: str, err: str, **more: Any) -> None:
        super().__init__(err)
        self.code = FAULTS[word].code
        self.message = clip(err)
        self.fields = more
