"""Replies: one struct for every message to a client, so each key has one type and meaning.

All messages for a request carry its `id`; exactly one has `done` in `status`, and it is the last. `out` and `err`
chunks come before `value`, `value` before `done`. Unset keys are absent.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from replwire.documented import descriptions, documented

Binary = bytes  # base64 on the wire
TRUNCATED = "…[truncated]"  # appended to text truncated at a UTF-8 boundary


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
    """A name that is not in a clone or a snapshot, and why."""

    name: str
    why: str


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A checkpoint in `ls-checkpoints`. `eval-id` is the last eval it includes, 0 for none.

    `parent` is the checkpoint that the state went on from, absent if it was dropped. `memory-bytes` is memory that no
    other process shares. `current` marks the checkpoint that the present state goes on from.
    """

    checkpoint: int
    checkpoint_name: str | None
    eval_id: int
    parent: int | None
    created: str
    automatic: bool
    current: bool
    memory_bytes: int | None


class FileChange(msgspec.Struct, frozen=True):
    """A file of the session's directory that was `added`, `modified` or `deleted`, or whose `mode` is another."""

    path: str
    change: str


class ThreadStack(msgspec.Struct, frozen=True):
    """A thread of a session's interpreter in `stack`, outermost frame first."""

    name: str
    frames: list[StackFrame]


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process of a session."""

    pid: int
    command: str


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A piece of code that the session ran. `status` is empty until it has ended.

    `undone` is true if a rollback or a crash has undone it.
    """

    eval_id: int
    code: str
    status: list[str]
    epoch: int
    agent: str | None
    submitted: str
    duration_ms: float | None
    undone: bool = False


class HibernatedEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The stored variables of a hibernated session. `since` is ISO 8601, UTC."""

    since: str
    count: int
    bytes: int
    skipped: list[SkippedName] = []


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A session in `ls-sessions`. Times are ISO 8601, UTC; `created-at` is in Unix seconds.

    `ref` identifies this session in requests of this client: its name, `OWNER/NAME`, or its id. `worker-epoch` is the
    epoch since which it has its variables: in those after it, it has gone back to checkpoints or was hibernated, but
    lost nothing else. `branch-of` is the id of the session that it began as a copy of. A `hibernated` one has no
    process: its variables are stored, and the next eval brings them back.
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
    worker_epoch: int = 1
    branch_of: str | None = None
    hibernated: HibernatedEntry | None = None
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
    """An eval in `jobs`. `status` is its terminal status once it has ended.

    `undone` is true if a rollback or a crash has undone it.
    """

    eval_id: int
    state: str
    status: list[str]
    epoch: int
    agent: str | None
    submitted: str
    started: str | None
    duration_ms: float | None
    code: str
    undone: bool = False


class Reply(msgspec.Struct, kw_only=True, rename="kebab", omit_defaults=True):
    """One message to a client."""

    id: Annotated[str, documented("the request's id, verbatim")]
    status: Annotated[
        list[str] | None, documented("words of the tables of statuses and faults; `done` ends the reply")
    ] = None
    out: Annotated[str | None, documented("text printed to stdout, live")] = None
    err: Annotated[str | None, documented("with `error` in status: the error message; else text printed to stderr")] = (
        None
    )
    value: Annotated[
        str | None, documented("value of the last expression as text; `None` (Python) if there is none")
    ] = None
    ns: Annotated[str | None, documented("namespace the code ran in")] = None
    mime: Annotated[
        dict[str, Any] | None,
        documented(
            "MIME type to data, as in Jupyter; images in base64. With `value` it is the value's rich form, "
            "alone a figure the code drew"
        ),
    ] = None
    images_dropped: Annotated[int | None, documented("figures the code drew that are not included")] = None
    repr_error: Annotated[str | None, documented("exception raised by the value's repr; then there is no `value`")] = (
        None
    )
    ex: Annotated[ExceptionInfo | None, documented("exception that ended the code")] = None
    stacktrace: Annotated[list[StackFrame] | None, documented("user frames, bounded, outermost first")] = None
    traceback: Annotated[str | None, documented("the traceback as printed by the runtime, bounded")] = None
    eval_id: Annotated[int | None, documented("number of the eval in its session, from 1")] = None
    epoch: Annotated[
        int | None, documented("generation of the session's worker; incremented at each reset or loss")
    ] = None
    state: Annotated[
        str | None,
        documented(
            "`kept`, `rolled-back`, `restored` or `lost`: whether the variables from before this request still exist. "
            "`rolled-back`: those of the checkpoint `checkpoint`. `restored`: those of a snapshot; see `not-restored`"
        ),
    ] = None
    cause: Annotated[str | None, documented("cause of a worker's death, in words")] = None
    hint: Annotated[str | None, documented("what to do about it")] = None
    approval: Annotated[Approval | None, documented("decision for a person, and the id for the next attempt")] = None
    notice: Annotated[str | None, documented("remark about the session for the caller")] = None
    ephemeral: Annotated[bool | None, documented("true: it ran in an ephemeral session")] = None
    created: Annotated[bool | None, documented("true: this request opened the session")] = None
    session: Annotated[str | None, documented("id of the session")] = None
    name: Annotated[str | None, documented("name of the session")] = None
    cwd: Annotated[str | None, documented("working directory of the session")] = None
    truncated: Annotated[bool | None, documented("true: output or value was truncated")] = None
    ignored_fields: Annotated[list[str] | None, documented("unknown fields of the request, which were ignored")] = None
    dropped_bytes: Annotated[int | None, documented("bytes of output or value that were not sent")] = None
    duration_ms: Annotated[float | None, documented("run time of the code")] = None
    changed: Annotated[list[str] | None, documented("names created or rebound by the eval, at most 100")] = None
    reloaded: Annotated[list[str] | None, documented("changed settings now in force")] = None
    needs_restart: Annotated[list[str] | None, documented("changed settings that require a restart")] = None
    background_bytes: Annotated[int | None, documented("unread background output: `read` eval-id 0")] = None
    max_eval_time_ms: Annotated[int | None, documented("time limit of the eval")] = None
    queue_position: Annotated[int | None, documented("evals before this one")] = None
    retry_after_ms: Annotated[int | None, documented("time after which to retry")] = None
    limit: Annotated[str | None, documented("name of the limit that was reached")] = None
    limit_value: Annotated[int | None, documented("value of that limit")] = None
    quota_of: Annotated[
        str | None,
        documented("whose quota is exhausted: an identity or `agent LABEL of IDENTITY`; absent: the total is"),
    ] = None
    correlation_id: Annotated[str | None, documented("identifies an internal error in the broker's log")] = None
    offset: Annotated[int | None, documented("offset for the next `read` or `get-file`, or of `data`")] = None
    interrupted: Annotated[list[str] | None, documented("sessions in which something was interrupted")] = None
    interrupted_id: Annotated[int | None, documented("eval-id of the interrupted running eval")] = None
    delivered: Annotated[list[str] | None, documented("sessions whose running eval got the input")] = None
    buffered: Annotated[list[str] | None, documented("sessions that buffer the input")] = None
    outcome: Annotated[
        str | None, documented("`ran`, `did-not-run` or `unknown`: the fate of an eval whose reply was lost")
    ] = None
    sessions: list[SessionEntry] | None = None
    jobs: list[JobEntry] | None = None
    count: Annotated[int | None, documented("number of names listed, deleted or copied")] = None
    history: list[HistoryEntry] | None = None
    completions: list[Completion] | None = None
    start: Annotated[int | None, documented("start of the completed word, in bytes")] = None
    found: Annotated[bool | None, documented("true: the name is defined")] = None
    type: Annotated[str | None, documented("type of the object")] = None
    doc: Annotated[str | None, documented("its documentation, bounded")] = None
    signature: Annotated[str | None, documented("its signature")] = None
    methods: Annotated[list[str] | None, documented("its methods")] = None
    file: Annotated[str | None, documented("file that defines it; path of a file that was moved")] = None
    line: int | None = None
    bindings: list[Binding] | None = None
    threads: list[ThreadStack] | None = None
    processes: list[ProcessInfo] | None = None
    new_session: Annotated[str | None, documented("id of the clone")] = None
    bytes: Annotated[int | None, documented("size of the copied data, or of a file")] = None
    snapshot: Annotated[str | None, documented("id of a snapshot")] = None
    data: Annotated[Binary | None, documented("a part of a file or snapshot, in base64")] = None
    sha256: Annotated[str | None, documented("SHA-256 of the whole file, in hexadecimal")] = None
    skipped: Annotated[list[SkippedName] | None, documented("variables not copied, at most 100")] = None
    checkpoint: Annotated[int | None, documented("number of a checkpoint")] = None
    checkpoint_name: Annotated[str | None, documented("name of that checkpoint")] = None
    checkpoints: list[CheckpointEntry] | None = None
    branch_of: Annotated[str | None, documented("id of the session that a branch is a copy of")] = None
    undone: Annotated[bool | None, documented("true: a rollback or a crash has undone this eval")] = None
    undone_evals: Annotated[list[int] | None, documented("evals that were undone, at most the last 100")] = None
    redone_evals: Annotated[list[int] | None, documented("evals undone before that count again, likewise")] = None
    dropped: Annotated[
        list[int] | None, documented("checkpoints dropped because there were too many, at most the last 100")
    ] = None
    checkpoints_off: Annotated[str | None, documented("reason why no checkpoint is taken")] = None
    not_restored: Annotated[
        list[str] | None, documented("parts of the earlier state that did not come back, in sentences")
    ] = None
    file_changes: Annotated[list[FileChange] | None, documented("files that have changed, at most 1000")] = None
    patch: Annotated[str | None, documented("changes of text files, as `diff -u` shows them, bounded")] = None
    environment: Annotated[str | None, documented("requested Python environment")] = None
    environments: list[EnvironmentEntry] | None = None
    executable: Annotated[str | None, documented("path of the interpreter")] = None
    session_mode: Annotated[str | None, documented("`plan` or `normal`")] = None
    entered_at: Annotated[str | None, documented("time the session entered plan mode")] = None
    entered_reason: Annotated[str | None, documented("reason given for plan mode")] = None
    identity: Annotated[str | None, documented("the client's identity")] = None
    acts_as: Annotated[
        str | None, documented("host user whose rights its sessions use for directories and files, or `nobody`")
    ] = None
    owner: Annotated[str | None, documented("identity of the session's owner")] = None
    offered_to: Annotated[str | None, documented("identity that may accept it with `transfer`")] = None
    shares: Annotated[dict[str, str] | None, documented("identities that may `read` or `write` the session")] = None
    more_hosts: Annotated[
        dict[str, str] | None, documented("hosts allowed beyond the list of the session, and until when")
    ] = None
    trusted: bool | None = None
    runtimes: list[str] | None = None
    sandbox: Annotated[dict[str, Any] | str | None, documented("sandbox policy and probed layers")] = None
    info: dict[str, Any] | None = None
    ops: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    instance: Annotated[str | None, documented("id of this start of the broker; another one after a restart")] = None
    encodings_available: list[str] | None = None
    encoding_current: str | None = None
    stats: dict[str, Any] | None = None
    broker_version: Annotated[
        str | None,
        documented(
            "the broker's version, if it differs from the request's `client-version`; in a separate first message"
        ),
    ] = None
    event: Annotated[dict[str, Any] | None, documented("an event, for a subscription")] = None
    events: Annotated[list[dict[str, Any]] | None, documented("events after `since-seq`, oldest first")] = None
    seq: Annotated[int | None, documented("number of the session's latest event")] = None
    missed: Annotated[int | None, documented("events after `since-seq` no longer buffered")] = None
    snapshots: Annotated[dict[str, Any] | None, documented("snapshots by name of the part")] = None
    result: Annotated[Any, documented("data of an operation that an extension contributes")] = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Reply).decode


def reply_fields() -> dict[str, str]:
    """Return every reply key with its description, for the docs."""
    return {name: text or "see the operation with this name" for name, text in descriptions(Reply).items()}
