"""Request parsing: JSON, envelope checks, and conversion to operations.

A request is one flat JSON object in kebab-case; arrays are allowed, nested objects are not. Fields unknown to the
operation are ignored and listed in the reply; requests that open a session are refused for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from replwire.faults import RequestError
from replwire.identifiers import MAX_NAME_BYTES, is_kebab, name_error, path_error, reference_error
from replwire.ops import OPS, Eval, Request
from replwire.ops.extension import ExtensionRequest

__all__ = ["OPS", "describe_ops", "parse", "to_request", "unknown_field_message", "unknown_fields"]

_FIELDS = {op: frozenset(field.encode_name for field in msgspec.structs.fields(kind)) for op, kind in OPS.items()}
_KNOWN = frozenset[str]().union(*_FIELDS.values())
_MAX_UNKNOWN = 20  # fields listed
_MAX_FIELD = 64  # characters of a field
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_text = msgspec.json.Decoder(str).decode
_BEGINS = re.compile(rb'\s*\{\s*"id"\s*:\s*("(?:[^"\\]|\\.){0,2048}")')
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<field>[^`\[]*).*)?\Z", re.S)


class _Identified(msgspec.Struct):
    id: str = ""


_decode_id = msgspec.json.Decoder(_Identified).decode


def parse(body: bytes | memoryview) -> dict[str, Any]:
    """Parse a flat JSON object with a valid `id` and `op`.

    Raises:
        RequestError: `malformed-request` if it is not a JSON object, `invalid-request` if the envelope is wrong; it
            carries the `id` to reply to, if there is one
    """
    if not body:
        raise RequestError("malformed-request", "Malformed JSON: a request is one frame with one JSON object", id="")
    try:
        raw = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("malformed-request", f"Malformed JSON: {error}", id="") from None
    request_id = raw.get("id")
    if not isinstance(request_id, str):
        why = "id must not be empty" if request_id is None else "id must be a string"
        raise RequestError("invalid-request", why, id="")
    if not request_id:
        raise RequestError("invalid-request", "id must not be empty", id="")
    if len(request_id) > MAX_NAME_BYTES or len(request_id.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise RequestError("invalid-request", f"id exceeds maximum length of {MAX_NAME_BYTES}", id=request_id)
    if not raw.keys() <= _KNOWN:
        _check_unknown(raw, request_id)
    op = raw.get("op")
    if not isinstance(op, str):
        why = "op is required" if op is None else "op must be a string"
        raise RequestError("invalid-request", why, id=request_id)
    return raw


def extract_id(body: bytes) -> str:
    """Return the `id` of a request without parsing the rest, or "".

    Fast if it is the first field; in a truncated message only that position is searched.
    """
    begins = _BEGINS.match(body)
    try:
        found = _decode_id(body).id if begins is None else _text(begins[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = ""
    return found if len(found.encode("utf-8", "replace")) <= MAX_NAME_BYTES else ""


def _text(quoted: bytes) -> str:
    try:
        return _decode_text(quoted)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _check_unknown(raw: dict[str, Any], request_id: str) -> None:
    """Check that unknown fields are kebab-case and flat as well."""
    for key, value in raw.items():
        if not is_kebab(key):
            raise RequestError("invalid-request", "request keys must use kebab-case", id=request_id)
        if isinstance(value, dict):
            raise RequestError("invalid-request", "request message must use a flat JSON envelope", id=request_id)


def to_request(raw: dict[str, Any], extension_ops: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Request:
    """Convert a parsed object to its operation.

    Args:
        raw: The object.
        extension_ops: Descriptions of the operations that extensions contribute, by name.

    Raises:
        RequestError: `unknown-op` or `invalid-request`
    """
    op = raw["op"]
    kind = OPS.get(op)
    if kind is None:
        if op not in extension_ops:
            raise RequestError("unknown-op", f"Unknown operation: {op[:MAX_NAME_BYTES]}")
        kind, raw = ExtensionRequest, raw | {"is-change": extension_ops[op]["changes"]}
    try:
        request = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise RequestError("invalid-request", _explain(op, str(error))) from None
    if request.session is not None and (why := reference_error("session", request.session)) is not None:
        raise RequestError("invalid-request", why)
    if request.project is not None and (why := path_error("project", request.project)) is not None:
        raise RequestError("invalid-request", why)
    for label, name in (("agent", request.agent), ("binding", request.binding)):
        if name is not None and (why := name_error(label, name)) is not None:
            raise RequestError("invalid-request", why)
    return request


def unknown_fields(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return fields that the operation does not have, bounded in number and length; an extension checks its own."""
    known = _FIELDS.get(raw["op"])
    if known is None or raw.keys() <= known:
        return ()
    return tuple(name[:_MAX_FIELD] for name in raw if name not in known)[:_MAX_UNKNOWN]


def unknown_field_message(op: str, name: str) -> str:
    """Return the message for an unknown field, with the closest known one."""
    from difflib import get_close_matches  # imported only for an error message

    near = get_close_matches(name[:_MAX_FIELD], _FIELDS[op] - {"id", "op"}, 1)
    return f"{op} has no field {name[:_MAX_FIELD]}" + (f": did you mean {near[0]}?" if near else "")


def _explain(op: str, text: str) -> str:
    """Rephrase a msgspec error with the wire name of the field."""
    if text.startswith("Object missing required field"):
        return f"{op} requires {text.split('`')[1]}"
    match = _WHERE.match(text)
    what, field = (match["what"], match["field"]) if match else (text, None)
    if "got `object`" in what:
        return "request message must use a flat JSON envelope"
    return f"{field}: {what[:1].lower()}{what[1:]}" if field else what


def describe_ops() -> dict[str, dict[str, Any]]:
    """Return each operation as data: `doc`, `requires`, `optional`, `returns`, `changes`."""
    table = {}
    for op, kind in OPS.items():
        fields = [field for field in msgspec.structs.fields(kind) if field.name not in ("id", "op")]
        requires = [field.encode_name for field in fields if field.required]
        if kind is Eval:  # missing code has its own error code, so the struct permits it
            requires.append("code")
        table[op] = {
            "doc": " ".join((kind.__doc__ or "").split()),
            "requires": requires,
            "optional": [field.encode_name for field in fields if field.encode_name not in requires],
            "returns": list(kind.returns),
            "changes": kind.changes,
        }
    return table
