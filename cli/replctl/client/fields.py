"""Check for request fields that no operation has, so that a misspelt option is not silently dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replctl.client.errors import ReplError

# Fields that this library sends itself. Loading the table of operations takes 10 ms, which commands avoid; the
# broker refuses fields that the operation lacks, or lists them in `ignored-fields`.
_LIBRARY_FIELDS = frozenset(
    {
        "action",
        "all",
        "allow_stdin",
        "approval",
        "checkpoint",
        "checkpoint_files",
        "code",
        "cwd",
        "cwd_needed",
        "data",
        "env",
        "eval_id",
        "expect_epoch",
        "file",
        "for_ms",
        "final",
        "grep",
        "hosts",
        "idempotency_key",
        "if_exists",
        "if_missing",
        "input",
        "interrupt_id",
        "last",
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
        "sha256",
        "silent",
        "snapshot",
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
    """Raise UnknownFieldError for the first field that the operation does not have.

    An operation unknown to this client may belong to a newer broker, which replies for itself.
    """
    if fields.keys() <= _LIBRARY_FIELDS:
        return
    from replwire.requests import OPS, unknown_field_message, unknown_fields

    if op not in OPS:
        return
    names = {name.replace("_", "-"): None for name in fields}
    for name in unknown_fields({"op": op, **names}):
        raise UnknownFieldError("invalid-request", unknown_field_message(op, name))
