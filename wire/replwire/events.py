"""All events, one flat struct each, in one table.

A canonical event has a number within its session (`seq`, from 1, without gaps), is stored in the transcript, and can be
replayed. An ephemeral event reaches current subscribers only. `docs/events.md` is generated from this table, and the
tests decode every event through it, so an undeclared event fails there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import msgspec
from msgspec import Meta

VERSION = 1
BROKER = "broker"  # `emitter` of the broker's own events, and transcript of events without a session

EvalStatus = Literal["ok", "error", "cancelled", "timeout", "died", "refused"]


def _says(text: str) -> Meta:
    return Meta(description=text)


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True, tag_field="type"):
    """Fields common to all events."""

    canonical: ClassVar[bool] = True

    id: Annotated[str, _says("its own, never used again: the broker's start, and a number")]
    time: Annotated[str, _says("ISO 8601, UTC")]
    v: Annotated[int, _says("version of this table")] = 0  # never 0, because defaults are omitted
    seq: Annotated[int, _says("number within the session, or among those without one; absent in ephemeral events")] = 0
    session: Annotated[str | None, _says("id of the session; absent in events of the broker as a whole")] = None
    eval: Annotated[int, _says("eval-id, where it is about an eval")] = 0
    agent: Annotated[str | None, _says("label of the agent that it was done for")] = None
    emitter: Annotated[str, _says("what made the event: `broker`, or an extension")] = ""


ENVELOPE = tuple(field.encode_name for field in msgspec.structs.fields(Event))


class BrokerStarted(Event, frozen=True, kw_only=True, rename="kebab", tag="broker/started"):
    """The broker has started."""

    version: str
    runtimes: list[str]
    limits: Annotated[dict[str, int], _says("those that are not the default")]


class BrokerShutdown(Event, frozen=True, kw_only=True, rename="kebab", tag="broker/shutdown"):
    """The broker shuts down in order. A killed broker sends no such event."""

    reason: str


class ConfigReloaded(Event, frozen=True, kw_only=True, rename="kebab", tag="config/reloaded"):
    """The broker has reloaded its config file."""

    reloaded: Annotated[list[str], _says("settings that have changed")]
    needs_restart: Annotated[list[str], _says("settings that are another in the file, and stay as they were")]


class SessionCreated(Event, frozen=True, kw_only=True, rename="kebab", tag="session/created"):
    """A session was created."""

    name: str | None = None
    runtime: str
    environment: str | None = None
    cwd: str | None = None
    owner: Annotated[str, _says("the identity whose session it is")]
    project: Annotated[str | None, _says("the project of a default session")] = None
    ephemeral: Annotated[bool, _says("true: a throw-away session; no transcript keeps it")] = False
    epoch: int


class SessionForked(Event, frozen=True, kw_only=True, rename="kebab", tag="session/forked"):
    """The session was created with copies of another session's variables."""

    source: Annotated[str, _says("id of the session that was copied")]
    count: Annotated[int, _says("names that came along")]
    left_behind: Annotated[list[str], _says("names that did not, at most 100")]


class SessionBusy(Event, frozen=True, kw_only=True, rename="kebab", tag="session/busy"):
    """The session runs an eval."""

    canonical: ClassVar[bool] = False


class SessionIdle(Event, frozen=True, kw_only=True, rename="kebab", tag="session/idle"):
    """The session has nothing to run."""

    canonical: ClassVar[bool] = False


class SessionReset(Event, frozen=True, kw_only=True, rename="kebab", tag="session/reset"):
    """The session was reset by request: its worker was killed and its variables are lost."""

    reason: str
    epoch: Annotated[int, _says("the epoch that begins")]


class SessionLost(Event, frozen=True, kw_only=True, rename="kebab", tag="session/lost"):
    """The worker died or had to be killed: the session's variables are lost."""

    why: str
    epoch: Annotated[int, _says("the epoch that begins")]


class SessionMoved(Event, frozen=True, kw_only=True, rename="kebab", tag="session/moved"):
    """The session switched to another environment, with a new worker."""

    environment: Annotated[str | None, _says("as it was asked for; absent: the broker's own")] = None
    executable: str | None = None
    epoch: int


class SessionClosed(Event, frozen=True, kw_only=True, rename="kebab", tag="session/closed"):
    """The session was closed. Its last event."""

    reason: str


class EvalAccepted(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/accepted"):
    """An eval, or another queued operation, was accepted. Exactly one `eval/finished` follows."""

    op: str
    code: Annotated[
        str,
        _says("what is run, cut to `event-text-bytes`; absent where hooks judge it first: then `eval/started` has it"),
    ] = ""
    code_truncated: bool = False
    epoch: int
    limit_ms: Annotated[int, _says("how long it may run")]
    request_id: str
    traceparent: Annotated[str | None, _says("the caller's span, as the request had it")] = None


class EvalQueued(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/queued"):
    """The eval is still waiting for its turn."""

    position: Annotated[int, _says("how many go before it")]


class EvalStarted(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/started"):
    """The eval was sent to the worker."""

    worker: int
    queue_wait_ms: float
    code: Annotated[str, _says("what hooks have let run")] = ""
    code_truncated: bool = False


class EvalOutput(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/output"):
    """Live output of an eval, for subscribers with `output`."""

    canonical: ClassVar[bool] = False

    reply: Annotated[msgspec.Raw, _says("the message as its own client gets it: `out`, `err`, `mime`, …")]


class EvalOutputEnd(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/output-end"):
    """End of an eval's live output, for subscribers with `output`."""

    canonical: ClassVar[bool] = False

    messages: int
    bytes: Annotated[int, _says("of these messages")]


class EvalFinished(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/finished"):
    """The eval has ended. Sent exactly once per accepted eval, when the session can take the next one."""

    status: Annotated[EvalStatus, _says("how it ended, in one word")]
    words: Annotated[list[str], _says("the status of its answer on the wire")]
    duration_ms: Annotated[float | None, _says("how long the code ran; absent when it never did")] = None
    epoch: int
    value: str | None = None
    ns: str | None = None
    out: Annotated[str, _says("the end of its stdout: all that the event keeps is within `event-text-bytes`")] = ""
    err: Annotated[str, _says("the end of its stderr")] = ""
    images: Annotated[list[Any], _says("figures that it drew, MIME type to data, as far as there is room")] = []
    mime: Annotated[dict[str, Any] | None, _says("the value's rich form, as far as there is room")] = None
    truncated: Annotated[bool, _says("true: something of this is missing here")] = False
    error: Annotated[str | None, _says("what went wrong, in a sentence")] = None
    error_type: Annotated[str | None, _says("the type of the exception, when the code raised one")] = None
    traceback: str | None = None
    cause: Annotated[str | None, _says("what ended its worker")] = None
    state: Annotated[str | None, _says("`kept` or `lost`: the variables from before")] = None


class EvalInterruptRequested(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/interrupt-requested"):
    """A client or the time limit requested an interrupt. `eval/finished` reports the result."""

    by: Annotated[str, _says("an agent, `a client`, or `time-limit`")]


class WorkerSpawned(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/spawned"):
    """A worker process was started."""

    worker: int
    runtime: str
    environment: str | None = None


class WorkerReady(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/ready"):
    """The worker's interpreter is ready."""

    worker: int
    start_ms: float


class WorkerExited(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/exited"):
    """A worker has exited, or is being stopped because it is no longer needed."""

    worker: int
    cause: str
    of: Annotated[str | None, _says("id of the session that had it")] = None


class AdmissionRefused(Event, frozen=True, kw_only=True, rename="kebab", tag="admission/refused"):
    """A request exceeded a limit. At most one event per second, code and agent; `count` includes the others."""

    word: str
    limit: str
    limit_value: int
    err: str
    count: Annotated[int, _says("refusals since the last such event, this one included")]


class PolicyDecision(Event, frozen=True, kw_only=True, rename="kebab", tag="policy/decision"):
    """A rule, a mode, a hook or session ownership denied a request.

    At most one event per second, as for admission/refused; decisions of hooks are all reported, as events of the
    session.
    """

    verdict: Annotated[Literal["block", "ask"], _says("`ask`: a person is to decide")]
    word: str
    reason: str
    count: int
    hook: Annotated[str | None, _says("whose verdict it is, `OWNER/NAME`; absent: the broker's own")] = None


class ExtensionLoaded(Event, frozen=True, kw_only=True, rename="kebab", tag="extension/loaded"):
    """An extension registered its contributions with the broker."""

    contributes: Annotated[list[str], _says("`KIND NAME` of each")]


class ExtensionError(Event, frozen=True, kw_only=True, rename="kebab", tag="extension/error"):
    """An extension raised an exception or timed out. Other extensions are not affected."""

    contribution: Annotated[str, _says("`KIND NAME` of what failed")]
    error: str


class LogInfo(Event, frozen=True, kw_only=True, rename="kebab", tag="log/info"):
    """A line of the broker's log."""

    canonical: ClassVar[bool] = False

    text: str


class LogError(Event, frozen=True, kw_only=True, rename="kebab", tag="log/error"):
    """An internal error of the broker."""

    where: str
    summary: str
    correlation_id: str


class BusLagged(Event, frozen=True, kw_only=True, rename="kebab", tag="bus/lagged"):
    """Events were dropped for this subscriber, because it was too slow or subscribed too late.

    Subscribe again with `since-seq`, or read the transcript.
    """

    canonical: ClassVar[bool] = False

    missed: Annotated[int, _says("events that were left out, of either kind")]


_ALL: tuple[type[Event], ...] = (
    BrokerStarted,
    BrokerShutdown,
    ConfigReloaded,
    SessionCreated,
    SessionForked,
    SessionBusy,
    SessionIdle,
    SessionReset,
    SessionLost,
    SessionMoved,
    SessionClosed,
    EvalAccepted,
    EvalQueued,
    EvalStarted,
    EvalOutput,
    EvalOutputEnd,
    EvalFinished,
    EvalInterruptRequested,
    WorkerSpawned,
    WorkerReady,
    WorkerExited,
    AdmissionRefused,
    PolicyDecision,
    ExtensionLoaded,
    ExtensionError,
    LogInfo,
    LogError,
    BusLagged,
)
EVENTS: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in _ALL}

_NAMES = {kind: name for name, kind in EVENTS.items()}
encode = msgspec.json.Encoder().encode
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in EVENTS.items()}


class _Type(msgspec.Struct):
    type: str


_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_type = msgspec.json.Decoder(_Type).decode


def type_name(kind: type[Event]) -> str:
    """Return the wire type of an event class."""
    return _NAMES[kind]


def decode(body: bytes | memoryview) -> Event:
    """Decode an event.

    Raises:
        msgspec.MsgspecError: the body is malformed or its type is not declared
    """
    name = _decode_type(body).type
    if name not in _decoders:
        raise msgspec.ValidationError(f"no event {name[:80]}")
    return _decoders[name].decode(body)


def build_lagged(missed: int, time: str = "", session: str | None = None) -> bytes:
    """Build the bus/lagged event, which is made for one subscriber and has no sequence number."""
    return encode(BusLagged(v=VERSION, id="lagged", time=time, emitter=BROKER, session=session, missed=missed))


def wrap_event(request_id: str, event: bytes) -> bytes:
    """Wrap an encoded event in a message for the subscription `request_id`."""
    return b'{"id":%b,"event":%b}' % (encode(request_id), event)


def as_raw_json(body: bytes | memoryview) -> msgspec.Raw | None:
    """Return a message as raw JSON for embedding in an event, or None if it is not valid JSON."""
    try:
        return _decode_raw(body)
    except msgspec.MsgspecError:
        return None


def matching_types(words: list[str]) -> frozenset[str]:
    """Return the event types that match names and prefixes ending in `/`; all types for an empty list.

    Raises:
        ValueError: a word matches no type
    """
    found: set[str] = set()
    for word in words:
        some = {name for name in EVENTS if name == word or (word.endswith("/") and name.startswith(word))}
        if not some:
            raise ValueError(f"no event {word}")
        found |= some
    return frozenset(found) if words else frozenset(EVENTS)


def fields_of(kind: type[Event]) -> dict[str, str]:
    """Return wire name and description of an event's own fields; "" where there is no description."""
    hints = get_type_hints(kind, include_extras=True)
    table = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in ENVELOPE:
            meta = getattr(hints[field.name], "__metadata__", None)
            table[field.encode_name] = meta[0].description if meta else ""
    return table
