"""What a client may ask: one struct an operation, and how bytes become one.

The struct is the contract: `describe`, the docs table and later the tool schemas are derived from it.
Its docstring is the operation's text, a field without a default is required, `returns` names what comes back.
A request is one flat JSON object, kebab-case, arrays allowed, no nested objects; unknown fields are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from replwire.faults import Refusal
from replwire.names import MAX_NAME_BYTES, is_kebab, name_error

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Mode = Literal["error", "create"]


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What every request has. `agent` is a label for fairness and for people, not an identity."""

    returns: ClassVar[tuple[str, ...]] = ()

    id: str
    op: str
    session: str | None = None
    agent: str | None = None


class SessionRequest(Request, frozen=True, kw_only=True, rename="kebab"):
    """A request that needs a session, by name or id."""

    session: str


class Eval(Request, frozen=True, kw_only=True, rename="kebab"):
    """Run code in a session, or in a throw-away one when no session is named."""

    returns: ClassVar[tuple[str, ...]] = (
        "out", "err", "value", "mime", "ex", "stacktrace", "eval-id", "epoch", "state", "changed", "duration-ms",
        "ephemeral", "created", "truncated", "dropped-bytes", "queue-position", "cause", "hint",
    )  # fmt: skip

    code: str | None = None
    timeout_ms: Positive | None = None
    wait_ms: Natural | None = None
    silent: bool = False
    allow_stdin: bool = True
    store_history: bool = True
    if_missing: Mode = "error"
    runtime: str | None = None
    cwd: str | None = None
    env: list[str] = []
    expect_epoch: Natural | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)] | None = None
    mime: list[str] = []


class Read(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Output and answer of an eval, from an offset, waiting up to `wait-ms` for its end. `eval-id` 0 is what
    the session printed between evals."""

    returns: ClassVar[tuple[str, ...]] = (
        "out", "err", "value", "ex", "stacktrace", "eval-id", "epoch", "state", "offset", "truncated",
        "dropped-bytes", "duration-ms",
    )  # fmt: skip

    eval_id: Natural
    offset: Natural = 0
    stream: Literal["out", "err", "both"] = "both"
    wait_ms: Natural = 0
    max_bytes: Positive | None = None
    grep: Annotated[str, Meta(max_length=1000)] | None = None


class Interrupt(Request, frozen=True, kw_only=True, rename="kebab"):
    """Interrupt the session's running eval, or the running or queued one that `interrupt-id` names; `all` also
    empties the queue. `request-id` names an eval that this connection sent, whatever its session. Nothing to
    interrupt is no error."""

    returns: ClassVar[tuple[str, ...]] = ("interrupted", "interrupted-id")

    interrupt_id: Natural | None = None
    request_id: str | None = None
    all: bool = False


class Stdin(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Give input to the session: to the running eval, else kept for the next one that reads."""

    returns: ClassVar[tuple[str, ...]] = ("delivered", "buffered")

    input: str


class NewSession(Request, frozen=True, kw_only=True, rename="kebab"):
    """Open a session, with or without a name."""

    returns: ClassVar[tuple[str, ...]] = ("session", "name", "epoch", "created")

    name: str | None = None
    if_exists: Literal["error", "reuse"] = "error"
    runtime: str | None = None
    cwd: str | None = None
    env: list[str] = []


class LsSessions(Request, frozen=True, kw_only=True, rename="kebab"):
    """List the sessions."""

    returns: ClassVar[tuple[str, ...]] = ("sessions",)


class Close(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Close a session: its running eval ends `interrupted`, its processes are killed, its name is free."""

    returns: ClassVar[tuple[str, ...]] = ("session", "name")


class Reset(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Kill the session's worker and give it a fresh one. Name, id, runtime, folder and environment stay."""

    returns: ClassVar[tuple[str, ...]] = ("session", "name", "epoch", "state")


class ClearBindings(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Forget every name the session's code bound; the process stays."""

    returns: ClassVar[tuple[str, ...]] = ("count",)


class Jobs(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """The session's queued, running and recent evals."""

    returns: ClassVar[tuple[str, ...]] = ("jobs",)


class Info(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """What there is to know of a session: runtime, folder, process, memory, variables, limits."""

    returns: ClassVar[tuple[str, ...]] = ("info",)

    variables: bool = True


class Describe(Request, frozen=True, kw_only=True, rename="kebab"):
    """What this broker can do: operations, limits, versions."""

    returns: ClassVar[tuple[str, ...]] = (
        "ops",
        "limits",
        "versions",
        "encodings-available",
        "encoding-current",
    )


class Ping(Request, frozen=True, kw_only=True, rename="kebab"):
    """Is anybody there?"""


class Stats(Request, frozen=True, kw_only=True, rename="kebab"):
    """Counters, queue, pool and agents of the broker."""

    returns: ClassVar[tuple[str, ...]] = ("stats",)


class Shutdown(Request, frozen=True, kw_only=True, rename="kebab"):
    """End the broker: no new evals, running ones get the close grace, then every session is closed."""


OPS: dict[str, type[Request]] = {
    "eval": Eval,
    "read": Read,
    "interrupt": Interrupt,
    "stdin": Stdin,
    "new-session": NewSession,
    "ls-sessions": LsSessions,
    "close": Close,
    "reset": Reset,
    "clear-bindings": ClearBindings,
    "jobs": Jobs,
    "info": Info,
    "describe": Describe,
    "ping": Ping,
    "stats": Stats,
    "shutdown": Shutdown,
}

_KNOWN = frozenset(field.encode_name for kind in OPS.values() for field in msgspec.structs.fields(kind))
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<field>[^`\[]*).*)?\Z", re.S)


def parse(body: bytes | memoryview) -> dict[str, Any]:
    """The flat object that `body` holds, with a usable `id` and `op`.

    Raises Refusal: `malformed-request` when it is no JSON object, `invalid-request` when the envelope is wrong.
    A Refusal carries the `id` to answer under where there is one.
    """
    if not body:
        raise Refusal("malformed-request", "Malformed JSON: a request is one frame with one JSON object", id="")
    try:
        raw = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("malformed-request", f"Malformed JSON: {error}", id="") from None
    request_id = raw.get("id")
    if not isinstance(request_id, str):
        why = "id must not be empty" if request_id is None else "id must be a string"
        raise Refusal("invalid-request", why, id="")
    if not request_id:
        raise Refusal("invalid-request", "id must not be empty", id="")
    if len(request_id) > MAX_NAME_BYTES or len(request_id.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise Refusal("invalid-request", f"id exceeds maximum length of {MAX_NAME_BYTES}", id=request_id)
    if not raw.keys() <= _KNOWN:
        _check_unknown(raw, request_id)
    op = raw.get("op")
    if not isinstance(op, str):
        why = "op is required" if op is None else "op must be a string"
        raise Refusal("invalid-request", why, id=request_id)
    return raw


def _check_unknown(raw: dict[str, Any], request_id: str) -> None:
    """Unknown fields are ignored, but they too are kebab-case and flat."""
    for key, value in raw.items():
        if not is_kebab(key):
            raise Refusal("invalid-request", "request keys must use kebab-case", id=request_id)
        if isinstance(value, dict):
            raise Refusal("invalid-request", "request message must use a flat JSON envelope", id=request_id)


def typed(raw: dict[str, Any]) -> Request:
    """The request that a parsed object is. Raises Refusal `unknown-op` or `invalid-request`."""
    op = raw["op"]
    kind = OPS.get(op)
    if kind is None:
        raise Refusal("unknown-op", f"Unknown operation: {op[:MAX_NAME_BYTES]}")
    try:
        request = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise Refusal("invalid-request", _explain(op, str(error))) from None
    for label, name in (("session", request.session), ("agent", request.agent)):
        if name is not None and (why := name_error(label, name)) is not None:
            raise Refusal("invalid-request", why)
    return request


def _explain(op: str, text: str) -> str:
    """msgspec's sentence, with our name for the place and without its way of writing paths."""
    if text.startswith("Object missing required field"):
        return f"{op} requires {text.split('`')[1]}"
    match = _WHERE.match(text)
    what, field = (match["what"], match["field"]) if match else (text, None)
    if "got `object`" in what:
        return "request message must use a flat JSON envelope"
    return f"{field}: {what[:1].lower()}{what[1:]}" if field else what


def describe_ops() -> dict[str, dict[str, Any]]:
    """Each operation as data: `doc`, `requires`, `optional`, `returns`."""
    table = {}
    for op, kind in OPS.items():
        fields = [field for field in msgspec.structs.fields(kind) if field.name not in ("id", "op")]
        requires = [field.encode_name for field in fields if field.required]
        if kind is Eval:  # absent code has a fault word of its own, so the struct lets it pass
            requires.append("code")
        table[op] = {
            "doc": " ".join((kind.__doc__ or "").split()),
            "requires": requires,
            "optional": [field.encode_name for field in fields if field.encode_name not in requires],
            "returns": list(kind.returns),
        }
    return table
