"""Fields of a request that no operation has, refused before they are sent: an option that was misspelt must not be
dropped in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replctl.client.errors import ReplError

# Fields that this library sends itself. The table of operations takes 10 ms to load, which a command need not pay; the
# broker refuses, or names in `ignored-fields`, those of them that the operation at hand does not have.
_LIBRARY_FIELDS = frozenset(
    {
        "action",
        "all",
        "allow_stdin",
        "approval",
        "code",
        "cwd",
        "cwd_needed",
        "env",
        "eval_id",
        "expect_epoch",
        "file",
        "grep",
        "idempotency_key",
        "if_exists",
        "if_missing",
        "input",
        "interrupt_id",
        "level",
        "limit",
        "max_bytes",
        "mime",
        "module",
        "name",
        "offset",
        "output",
        "packages",
        "path",
        "pos",
        "reason",
        "request_id",
        "runtime",
        "session",
        "silent",
        "since_seq",
        "store_history",
        "stream",
        "subscription",
        "symbol",
        "timeout_ms",
        "to",
        "traceparent",
        "types",
        "variables",
        "wait_ms",
        "who",
    }
)


class UnknownFieldError(ReplError, TypeError):
    """The operation has no such option. Nothing was sent."""


def check_fields(op: str, fields: Mapping[str, Any]) -> None:
    """Raises UnknownFieldError for the first name that the operation does not have. An operation that is not known
    here is a newer broker's, perhaps: the broker answers."""
    if fields.keys() <= _LIBRARY_FIELDS:
        return
    from replwire.requests import OPS, unknown_field_message, unknown_fields

    if op not in OPS:
        return
    names = {name.replace("_", "-"): None for name in fields}
    for name in unknown_fields({"op": op, **names}):
        raise UnknownFieldError("invalid-request", unknown_field_message(op, name))
