"""All limits: name, unit, default, range and reason.

The config file, the flags, `describe`, `docs/limits.md` and the enforcing code all read this struct. Defaults are the
seed's (REPLy) where it names one. 0 means "no limit" only where the text says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MAX_CLOSED_SESSIONS = 1_000  # whose names, epochs and causes of end are kept
MAX_DELAYED_REFUSALS = 100  # per connection; one more closes it
RETRY_AFTER_MS = 1_000  # suggested when something is full: about the length of a short eval


def _bound(unit: str, low: int, high: int, why: str) -> Meta:
    return Meta(ge=low, le=high, description=why, extra={"unit": unit})


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """All limits of a broker. A value outside its range is rejected, never clamped."""

    max_eval_time_ms: Annotated[
        int,
        _bound(
            "ms",
            1,
            DAY_MS,
            "how long code may run when its caller waits for the end; `timeout-ms` asks for less",
        ),
    ] = 30_000
    max_job_time_ms: Annotated[
        int,
        _bound(
            "ms",
            1,
            30 * DAY_MS,
            "the same for an eval sent with `wait-ms`: its caller said it will come back",
        ),
    ] = HOUR_MS
    interrupt_grace_ms: Annotated[
        int,
        _bound(
            "ms",
            0,
            10 * MINUTE_MS,
            "how long code may take to obey the interrupt at its time limit; then its worker is killed",
        ),
    ] = 2_000
    max_wait_ms: Annotated[int, _bound("ms", 0, DAY_MS, "the longest `wait-ms` that a caller may ask for")] = HOUR_MS
    max_queue_wait_ms: Annotated[
        int,
        _bound(
            "ms",
            1,
            DAY_MS,
            "how long an eval may wait for its turn; one with `timeout-ms` waits that long at most",
        ),
    ] = 5 * MINUTE_MS
    max_value_bytes: Annotated[int, _bound("bytes", 16, MIB, "text of a value")] = 10 * KIB
    max_output_bytes: Annotated[
        int,
        _bound(
            "bytes",
            16,
            1024 * MIB,
            "live output of one eval, for stdout and stderr each; past it the end alone is kept",
        ),
    ] = 1_000_000
    output_tail_bytes: Annotated[
        int,
        _bound("bytes", 0, 16 * MIB, "the end of an output that was cut, for each stream, kept for `read`"),
    ] = 64 * KIB
    output_store_bytes: Annotated[
        int,
        _bound(
            "bytes",
            4 * KIB,
            4096 * MIB,
            "output, values and figures of finished evals that a session keeps for `read`; the oldest goes first",
        ),
    ] = 8 * MIB
    background_bytes: Annotated[
        int,
        _bound(
            "bytes",
            0,
            64 * MIB,
            "what a session's threads and children print between evals; the newest is kept",
        ),
    ] = 64 * KIB
    max_trace_bytes: Annotated[int, _bound("bytes", 256, MIB, "text of a traceback")] = 16 * KIB
    max_trace_frames: Annotated[
        int, _bound("frames", 2, 1000, "frames of a traceback; the first and the last half are kept")
    ] = 20
    max_history: Annotated[int, _bound("evals", 0, 1_000_000, "finished evals that a session remembers (`jobs`)")] = (
        1_000
    )
    history_bytes: Annotated[
        int, _bound("bytes", 0, 1024 * MIB, "code that a session's history keeps; the oldest goes first")
    ] = MIB
    max_snapshot_bytes: Annotated[
        int, _bound("bytes", 4 * KIB, 1024 * 1024 * MIB, "what a clone copies; it goes through a file")
    ] = 2048 * MIB
    max_file_bytes: Annotated[int, _bound("bytes", 1, 64 * MIB, "a file that `load-file` runs")] = MIB
    max_image_bytes: Annotated[
        int, _bound("bytes", 0, 4 * MIB, "one image in an answer, in base64, or another rich form")
    ] = 1_000_000
    max_images: Annotated[int, _bound("images", 0, 100, "images in the answers of one eval")] = 8
    max_sessions: Annotated[int, _bound("sessions", 0, 100_000, "live sessions, throw-away ones included")] = 100
    max_memory_bytes: Annotated[
        int,
        _bound(
            "bytes",
            0,
            1 << 50,
            "memory of all sessions together; past it the one that uses most is ended. 0: nine tenths of what this "
            "machine, or the broker's control group, has",
        ),
    ] = 0
    max_identity_memory_bytes: Annotated[
        int,
        _bound(
            "bytes",
            0,
            1 << 50,
            "the same of one identity's sessions. 0: half of what all may use; for the broker's own user no less than "
            "all",
        ),
    ] = 0
    min_free_memory_bytes: Annotated[
        int,
        _bound(
            "bytes",
            0,
            1 << 50,
            "memory that must be available for a session or an eval to begin; below half of it the session that uses "
            "most is ended. 0: a 32nd of what there is, 64 MiB to 512 MiB",
        ),
    ] = 0
    max_environments: Annotated[
        int, _bound("environments", 0, 100_000, "named environments (`@NAME`) that the broker keeps on the disk")
    ] = 100
    max_identity_environments: Annotated[int, _bound("environments", 0, 100_000, "the same of one identity")] = 20
    max_concurrent_evals: Annotated[
        int, _bound("evals", 0, 10_000, "evals that run at once in the whole broker; 0 refuses all")
    ] = 10
    short_eval_slots: Annotated[
        int,
        _bound(
            "evals",
            0,
            10_000,
            "of these so many are not for evals that may run for longer than `max-eval-time-ms`; one always is",
        ),
    ] = 2
    max_queued_evals: Annotated[
        int,
        _bound(
            "evals",
            0,
            100_000,
            "evals of one identity that wait for their turn; of the broker's own user and admins: of each agent",
        ),
    ] = 20
    max_queued_total: Annotated[int, _bound("evals", 0, 1_000_000, "evals of all that wait for their turn")] = 200
    identity_share_percent: Annotated[
        int,
        _bound(
            "percent",
            1,
            100,
            "what one identity may hold of each total (clients, sessions, slots, waiting requests, subscriptions, "
            "keys); the broker's own user and admins may hold all",
        ),
    ] = 50
    reserve_percent: Annotated[
        int,
        _bound("percent", 0, 90, "what nobody but the broker's own user, root and admins may take of each total"),
    ] = 10
    rate_limit_per_min: Annotated[
        int,
        _bound(
            "requests",
            0,
            10_000_000,
            "requests in any 60 s, refused ones included: of one connection of the broker's own user, of all of "
            "another's; 0 means no limit",
        ),
    ] = 600
    control_rate_per_min: Annotated[
        int,
        _bound(
            "requests",
            0,
            100_000,
            "of `interrupt` and `close` that get through in any 60 s although `rate-limit-per-min` is met",
        ),
    ] = 60
    max_request_bytes_per_s: Annotated[
        int,
        _bound(
            "bytes",
            0,
            4096 * MIB,
            "requests longer than 4 KiB in a second: of one connection of the broker's own user, of all of another's; "
            "0 means no limit",
        ),
    ] = 4 * MIB
    max_connections: Annotated[int, _bound("clients", 1, 100_000, "clients connected at once")] = 100
    first_request_ms: Annotated[
        int,
        _bound(
            "ms",
            0,
            DAY_MS,
            "how long a connection may ask nothing, or a stranger's not say whose it is; 0 means for ever",
        ),
    ] = 30_000
    max_message_bytes: Annotated[int, _bound("bytes", KIB, 256 * MIB, "one request")] = MIB
    max_stdin_bytes: Annotated[int, _bound("bytes", 1, 16 * MIB, "input that a session has not read yet")] = 64 * KIB
    max_waiting_reads: Annotated[
        int, _bound("requests", 1, 100_000, "requests of one session, other than evals, not yet answered")
    ] = 100
    max_waiting_reads_total: Annotated[int, _bound("requests", 1, 1_000_000, "the same of all sessions together")] = (
        1_000
    )
    ask_timeout_ms: Annotated[
        int,
        _bound(
            "ms",
            100,
            HOUR_MS,
            "how long a worker may take over anything but an eval before it is answered for",
        ),
    ] = 10_000
    max_idempotency_keys: Annotated[
        int,
        _bound(
            "keys", 0, 1_000_000, "idempotency keys that are remembered; the oldest of the same identity goes first"
        ),
    ] = 1_000
    max_subscriptions: Annotated[int, _bound("requests", 0, 10_000, "subscriptions of one connection at once")] = 20
    max_subscriptions_total: Annotated[
        int, _bound("requests", 0, 100_000, "subscriptions of all connections together")
    ] = 500
    event_ring: Annotated[
        int, _bound("events", 0, 100_000, "canonical events of a session that can be caught up with; the oldest goes")
    ] = 500
    event_ring_bytes: Annotated[int, _bound("bytes", 0, 8 * MIB, "the same in bytes")] = 256 * KIB
    event_text_bytes: Annotated[
        int,
        _bound(
            "bytes",
            256,
            MIB,
            "code, and shown text, of one eval that its events, and so the transcript, keep: the beginning of the "
            "code, the end of the output",
        ),
    ] = 64 * KIB
    session_idle_timeout_ms: Annotated[
        int, _bound("ms", 0, 365 * DAY_MS, "a session that was idle this long is closed; 0 means never")
    ] = HOUR_MS
    worker_start_ms: Annotated[int, _bound("ms", 100, HOUR_MS, "how long a worker may take to become ready")] = 20_000
    worker_silence_ms: Annotated[
        int,
        _bound(
            "ms",
            1_000,
            HOUR_MS,
            "a worker that says nothing for this long is taken for dead; it beats at a third of it",
        ),
    ] = 60_000
    hook_time_ms: Annotated[
        int,
        _bound("ms", 1, MINUTE_MS, "how long hooks may take to judge an eval, from its request on; then it is blocked"),
    ] = 2_000
    approval_time_ms: Annotated[
        int,
        _bound("ms", 1, HOUR_MS, "how long the `id` of an approval that a hook asked for is good"),
    ] = 5 * MINUTE_MS
    close_grace_ms: Annotated[
        int,
        _bound(
            "ms",
            0,
            HOUR_MS,
            "how long a broker that shuts down lets running evals end before it kills them",
        ),
    ] = 5_000


class LimitRow(NamedTuple):
    """A limit as a row for the docs, `describe` and the config listing."""

    name: str
    unit: str
    default: int
    low: int
    high: int
    why: str


def limit_rows() -> Iterator[LimitRow]:
    """Yield all limits as rows, in the order of the struct."""
    hints = get_type_hints(Limits, include_extras=True)
    for field in msgspec.structs.fields(Limits):
        meta: Any = hints[field.name].__metadata__[0]
        yield LimitRow(field.encode_name, meta.extra["unit"], field.default, meta.ge, meta.le, meta.description)
