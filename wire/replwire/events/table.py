"""Table of all event types, with encoding and decoding."""

from __future__ import annotations

import msgspec

from replwire.documented import descriptions
from replwire.events import state_types, types
from replwire.events.base import BROKER, ENVELOPE, VERSION, Event

_ALL: tuple[type[Event], ...] = (
    types.BrokerStarted,
    types.BrokerShutdown,
    types.ConfigReloaded,
    types.SessionCreated,
    types.SessionAdopted,
    state_types.SessionForked,
    state_types.SessionSaved,
    state_types.SessionRestored,
    state_types.SessionHibernated,
    state_types.SessionResumed,
    state_types.SessionBranched,
    types.SessionBusy,
    types.SessionIdle,
    types.SessionReset,
    types.SessionLost,
    state_types.SessionCheckpoint,
    state_types.SessionAutoCheckpoint,
    state_types.SessionRolledBack,
    types.SessionMoved,
    types.SessionClosed,
    types.FileWritten,
    types.EvalAccepted,
    types.EvalQueued,
    types.EvalStarted,
    types.EvalOutput,
    types.EvalOutputEnd,
    types.EvalFinished,
    types.EvalInterruptRequested,
    types.NetworkReached,
    types.NetworkRefused,
    types.NetworkHostsAdded,
    types.NetworkHostsRemoved,
    types.WorkerSpawned,
    types.WorkerReady,
    types.WorkerExited,
    types.AdmissionRefused,
    types.PolicyDecision,
    types.ExtensionLoaded,
    types.ExtensionError,
    types.LogInfo,
    types.LogError,
    types.BusLagged,
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
        raise msgspec.ValidationError(f"unknown event type {name[:80]}")
    return _decoders[name].decode(body)


def build_lagged(missed: int, time: str = "", session: str | None = None) -> bytes:
    """Build the bus/lagged event, which is made for one subscriber and has no sequence number."""
    return encode(types.BusLagged(v=VERSION, id="lagged", time=time, emitter=BROKER, session=session, missed=missed))


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
            raise ValueError(f"unknown event type {word}")
        found |= some
    return frozenset(found) if words else frozenset(EVENTS)


def fields_of(kind: type[Event]) -> dict[str, str]:
    """Return wire name and description of an event's own fields; "" where there is no description."""
    return {name: text for name, text in descriptions(kind).items() if name not in ENVELOPE}
