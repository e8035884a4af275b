"""Replies: one struct for every message to a client, so each key has one type and meaning.

All messages for a request carry its `id`; exactly one has `done` in `status`, and it is the last. `out` and `err`
chunks come before `value`, `value` before `done`. Unset keys are absent.
"""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

TRUNCATED = "…[truncated]"  # appended to text truncated at a UTF-8 boundary


def _says(text: str) -> Meta:
    return Meta(description=text)


class ExceptionInfo(msgspec.Struct, frozen=True):
    """An exception raised by user code."""

    type: str
    message: str


class StackFrame(msgspec.Struct, frozen=True):
    """A user frame of a stack trace; frames of the harness are never shown."""

    func: str
    file: str
    line: int


class Approval(msgspec.Struct, frozen=True):
    """A decision that a hook asks a person for. `id` allows one more attempt with the same code, for a limited time."""

    id: str
    hook: str
    title: str
    reason: str


class Variable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name bound by the session's code, described without running user code."""

    name: str
    type: str
    size: int | None = None
    shape: list[int] | None = None
    preview: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """A completion."""

    text: str
    type: str


class Binding(msgspec.Struct, frozen=True):
    """A name listed by `ls-bindings`."""

    name: str
    type: str


class SkippedName(msgspec.Struct, frozen=True):
    """A name that a clone did not copy, and why."""

    name: str
    why: str


class ThreadStack(msgspec.Struct, frozen=True):
    """A thread of a session's interpreter in `stack`, outermost frame first."""

    name: str
    frames: list[StackFrame]


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process of a session."""

    pid: int
    command: str


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A piece of code that the session ran. `status` is empty until it has ended."""

    eval_id: int
    code: str
    status: list[str]
    epoch: int
    agent: str | None
    submitted: str
    duration_ms: float | None


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A session in `ls-sessions`. Times are ISO 8601, UTC; `created-at` is in Unix seconds.

    `ref` identifies this session in requests of this client: its name, `OWNER/NAME`, or its id.
    """

    session: str
    name: str | None
    state: str
    runtime: str
    epoch: int
    created: str
    created_at: float
    last_activity: str
    eval_count: int
    queued: int
    running: int | None
    owner: str
    agent: str | None
    cwd: str | None
    ref: str
    project: str | None = None
    environment: str | None = None
    session_mode: str = "normal"
    type: str = "light"
    module: str = "__main__"
    trusted: bool = False
    pid: int | None = None


class EnvironmentEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A named environment.

    `sessions` are those using it that this client may see, by their `ref`; `session-count` counts all.
    """

    environment: str
    owner: str
    sessions: list[str]
    session_count: int


class JobEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """An eval in `jobs`. `status` is its terminal status once it has ended."""

    eval_id: int
    state: str
    status: list[str]
    epoch: int
    agent: str | None
    submitted: str
    started: str | None
    duration_ms: float | None
    code: str


class Reply(msgspec.Struct, kw_only=True, rename="kebab", omit_defaults=True):
    """One message to a client."""

    id: Annotated[str, _says("the request's id, verbatim")]
    status: Annotated[list[str] | None, _says("words of the table of statuses and faults; `done` ends the answer")] = (
        None
    )
    out: Annotated[str | None, _says("text the code printed to stdout, as it came")] = None
    err: Annotated[
        str | None, _says("with `error` in status: what went wrong, in a sentence; else text from stderr")
    ] = None
    value: Annotated[str | None, _says("the value of the last expression as text; `None` (python) for nothing")] = None
    ns: Annotated[str | None, _says("namespace the code ran in")] = None
    mime: Annotated[
        dict[str, Any] | None,
        _says(
            "MIME type to data, Jupyter's convention; images in base64. Beside `value` it is the value's form, alone "
            "it is a figure that the code drew"
        ),
    ] = None
    images_dropped: Annotated[int | None, _says("figures that the code drew and that are not shown")] = None
    repr_error: Annotated[str | None, _says("the value's own repr raised this; there is no `value`")] = None
    ex: Annotated[ExceptionInfo | None, _says("the exception that ended the code")] = None
    stacktrace: Annotated[list[StackFrame] | None, _says("the user's frames, bounded, outermost first")] = None
    traceback: Annotated[str | None, _says("the same as text, as the runtime prints it, bounded")] = None
    eval_id: Annotated[int | None, _says("number of the eval in its session, from 1")] = None
    epoch: Annotated[
        int | None, _says("which worker of the session this is about; counts up at each reset or loss")
    ] = None
    state: Annotated[str | None, _says("`kept` or `lost`: are the variables from before this request still there")] = (
        None
    )
    cause: Annotated[str | None, _says("what ended a worker, in words")] = None
    hint: Annotated[str | None, _says("what to do about it")] = None
    approval: Annotated[Approval | None, _says("what a person is to decide, and the id to send it again with")] = None
    notice: Annotated[str | None, _says("what a caller is to know of the session that it got")] = None
    ephemeral: Annotated[bool | None, _says("true: it ran in a throw-away session")] = None
    created: Annotated[bool | None, _says("true: this request opened the session")] = None
    session: Annotated[str | None, _says("id of the session")] = None
    name: Annotated[str | None, _says("its name")] = None
    cwd: Annotated[str | None, _says("its directory")] = None
    truncated: Annotated[bool | None, _says("true: output or value was cut")] = None
    ignored_fields: Annotated[
        list[str] | None, _says("fields of the request that the operation does not have: they had no effect")
    ] = None
    dropped_bytes: Annotated[int | None, _says("how many bytes are missing from what was sent")] = None
    duration_ms: Annotated[float | None, _says("how long the code ran")] = None
    changed: Annotated[list[str] | None, _says("names that the eval created or rebound, at most 100")] = None
    reloaded: Annotated[list[str] | None, _says("settings that a new config file has changed, now in force")] = None
    needs_restart: Annotated[list[str] | None, _says("settings that it changes when the broker starts anew")] = None
    background_bytes: Annotated[
        int | None, _says("bytes the session printed between evals and nobody read: `read` eval-id 0")
    ] = None
    max_eval_time_ms: Annotated[int | None, _says("the time limit that was in force")] = None
    queue_position: Annotated[int | None, _says("evals that go before this one")] = None
    retry_after_ms: Annotated[int | None, _says("when it is worth asking again")] = None
    limit: Annotated[str | None, _says("name of the limit that refused")] = None
    limit_value: Annotated[int | None, _says("and its value")] = None
    quota_of: Annotated[
        str | None,
        _says(
            "whose quota of it is used up: an identity or `agent LABEL of IDENTITY`; "
            "absent: it is used up by all together"
        ),
    ] = None
    correlation_id: Annotated[str | None, _says("finds an internal error in the broker's log")] = None
    offset: Annotated[int | None, _says("where the next `read` goes on")] = None
    interrupted: Annotated[list[str] | None, _says("sessions in which something was interrupted")] = None
    interrupted_id: Annotated[int | None, _says("eval-id of what was interrupted while it ran")] = None
    delivered: Annotated[list[str] | None, _says("sessions whose running eval got the input")] = None
    buffered: Annotated[list[str] | None, _says("sessions that keep the input for later")] = None
    sessions: list[SessionEntry] | None = None
    jobs: list[JobEntry] | None = None
    count: Annotated[int | None, _says("how many names: listed, forgotten or copied")] = None
    history: list[HistoryEntry] | None = None
    completions: list[Completion] | None = None
    start: Annotated[int | None, _says("where the completed word begins, in bytes")] = None
    found: Annotated[bool | None, _says("whether the name means anything")] = None
    type: Annotated[str | None, _says("type of what was looked up")] = None
    doc: Annotated[str | None, _says("its text, bounded")] = None
    signature: Annotated[str | None, _says("how it is called")] = None
    methods: Annotated[list[str] | None, _says("what can be called on it")] = None
    file: Annotated[str | None, _says("where it is defined")] = None
    line: int | None = None
    bindings: list[Binding] | None = None
    threads: list[ThreadStack] | None = None
    processes: list[ProcessInfo] | None = None
    new_session: Annotated[str | None, _says("id of the clone")] = None
    bytes: Annotated[int | None, _says("size of what was copied")] = None
    left_behind: Annotated[list[SkippedName] | None, _says("names that did not come along, at most 100")] = None
    environment: Annotated[str | None, _says("the python environment that was asked for")] = None
    environments: list[EnvironmentEntry] | None = None
    executable: Annotated[str | None, _says("the interpreter that runs")] = None
    session_mode: Annotated[str | None, _says("`plan` or `normal`")] = None
    entered_at: Annotated[str | None, _says("since when the session is in plan mode")] = None
    entered_reason: Annotated[str | None, _says("and why, in the words of who put it there")] = None
    identity: Annotated[str | None, _says("who the broker takes this client for")] = None
    acts_as: Annotated[
        str | None, _says("the host user with whose rights its sessions have directories and files opened, or `nobody`")
    ] = None
    owner: Annotated[str | None, _says("the identity whose session it is")] = None
    offered_to: Annotated[str | None, _says("the identity that may take it, by a `hand-over` of its own")] = None
    shares: Annotated[dict[str, str] | None, _says("who else may `read` or `write` the session")] = None
    trusted: bool | None = None
    runtimes: list[str] | None = None
    sandbox: Annotated[dict[str, Any] | str | None, _says("how sessions are confined, and what of it was observed")] = (
        None
    )
    info: dict[str, Any] | None = None
    ops: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    encodings_available: list[str] | None = None
    encoding_current: str | None = None
    stats: dict[str, Any] | None = None
    broker_version: Annotated[
        str | None,
        _says(
            "the broker is of this version, not of the request's `client-version`: in a message of its own, the first"
        ),
    ] = None
    event: Annotated[dict[str, Any] | None, _says("something that happened, for a subscription: see events")] = None
    events: Annotated[list[dict[str, Any]] | None, _says("what had happened after `since-seq`, oldest first")] = None
    seq: Annotated[int | None, _says("number of the session's last event until now")] = None
    missed: Annotated[int | None, _says("events after `since-seq` that the ring has given up")] = None
    snapshots: Annotated[dict[str, Any] | None, _says("the broker's parts by name")] = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Reply).decode


def reply_fields() -> dict[str, str]:
    """Return every reply key with its description, for the docs."""
    hints = get_type_hints(Reply, include_extras=True)
    table = {}
    for field in msgspec.structs.fields(Reply):
        meta = getattr(hints[field.name], "__metadata__", None)
        table[field.encode_name] = meta[0].description if meta else "see the operation of this name"
    return table
