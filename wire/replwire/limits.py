"""All limits: name, unit, default, range and reason.

The config file, the flags, `describe`, `docs/limits.md` and the enforcing code all read this struct. Defaults are the
seed's (REPLy) where it names one. 0 means "no limit" only where the text says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from replwire.documented import documented

KIB = 1024
MIB = 1024 * KIB
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MAX_CLOSED_SESSIONS = 1_000  # whose names, epochs and causes of end are kept
MAX_DELAYED_REFUSALS = 100  # per connection; one more closes it
RETRY_AFTER_MS = 1_000  # suggested when something is full: about the length of a short eval


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """All limits of a broker. A value outside its range is rejected, never clamped."""

    max_eval_time_ms: Annotated[
        int,
        documented("run time of code whose caller waits for the end; `timeout-ms` asks for less", "ms", 1, DAY_MS),
    ] = 30_000
    max_job_time_ms: Annotated[
        int,
        documented("run time of an eval sent with `wait-ms`, whose result can be read later", "ms", 1, 30 * DAY_MS),
    ] = HOUR_MS
    interrupt_grace_ms: Annotated[
        int,
        documented(
            "time for code to react to the interrupt at its time limit, before its worker is killed",
            "ms",
            0,
            10 * MINUTE_MS,
        ),
    ] = 2_000
    max_wait_ms: Annotated[int, documented("longest `wait-ms` of a request", "ms", 0, DAY_MS)] = HOUR_MS
    max_queue_wait_ms: Annotated[
        int,
        documented("time an eval may wait for its turn; with `timeout-ms` no longer than that", "ms", 1, DAY_MS),
    ] = 5 * MINUTE_MS
    max_value_bytes: Annotated[int, documented("text of a value", "bytes", 16, MIB)] = 10 * KIB
    max_output_bytes: Annotated[
        int,
        documented("live output of one eval, per stream; beyond it only the end is kept", "bytes", 16, 1024 * MIB),
    ] = 1_000_000
    output_tail_bytes: Annotated[
        int,
        documented("end of truncated output kept for `read`, per stream", "bytes", 0, 16 * MIB),
    ] = 4 * MIB
    output_store_bytes: Annotated[
        int,
        documented(
            "output, values and figures of finished evals kept per session for `read`, oldest dropped first",
            "bytes",
            4 * KIB,
            4096 * MIB,
        ),
    ] = 8 * MIB
    background_bytes: Annotated[
        int,
        documented(
            "newest background output of a session's threads and child processes, kept between evals",
            "bytes",
            0,
            64 * MIB,
        ),
    ] = 64 * KIB
    max_trace_bytes: Annotated[int, documented("text of a traceback", "bytes", 256, MIB)] = 16 * KIB
    max_trace_frames: Annotated[
        int, documented("frames of a traceback; the first and last half are kept", "frames", 2, 1000)
    ] = 20
    max_history: Annotated[int, documented("finished evals listed per session (`jobs`)", "evals", 0, 1_000_000)] = 1_000
    history_bytes: Annotated[
        int, documented("code kept in a session's history, oldest dropped first", "bytes", 0, 1024 * MIB)
    ] = MIB
    max_snapshot_bytes: Annotated[
        int, documented("data of a snapshot: of a clone, or saved in a file", "bytes", 4 * KIB, 1024 * 1024 * MIB)
    ] = 2048 * MIB
    max_part_bytes: Annotated[
        int, documented("part of a file or snapshot in one message", "bytes", 64 * KIB, 16 * MIB)
    ] = 512 * KIB
    transfer_idle_ms: Annotated[
        int, documented("time without a part after which an unfinished transfer is dropped", "ms", 100, HOUR_MS)
    ] = MINUTE_MS
    max_transfer_bytes: Annotated[
        int,
        documented(
            "file moved by `put-file` or `get-file`; a session's files are also limited by `sandbox.file-bytes`",
            "bytes",
            0,
            1024 * 1024 * MIB,
        ),
    ] = 1024 * MIB
    max_checkpoints: Annotated[
        int,
        documented("checkpoints of one session; the oldest without a name is dropped first", "checkpoints", 1, 100),
    ] = 8
    max_checkpoint_bytes: Annotated[
        int,
        documented(
            "memory of a session's checkpoints that they alone use; beyond it the oldest without a name is dropped",
            "bytes",
            MIB,
            1 << 50,
        ),
    ] = 1024 * MIB
    max_checkpoint_file_bytes: Annotated[
        int, documented("contents of files kept for a session's checkpoints", "bytes", MIB, 1 << 50)
    ] = 512 * MIB
    max_package_bytes: Annotated[
        int, documented("packages that one session has installed", "bytes", MIB, 1024 * 1024 * MIB)
    ] = 4096 * MIB
    max_file_bytes: Annotated[int, documented("file run by `load-file`", "bytes", 1, 64 * MIB)] = MIB
    max_image_bytes: Annotated[
        int, documented("an image in a reply, in base64, or another rich form", "bytes", 0, 4 * MIB)
    ] = 1_000_000
    max_images: Annotated[int, documented("images in the replies of one eval", "images", 0, 100)] = 8
    max_sessions: Annotated[int, documented("live sessions, including ephemeral ones", "sessions", 0, 100_000)] = 100
    max_memory_bytes: Annotated[
        int,
        documented(
            "memory of all sessions; beyond it the largest is ended. 0: nine tenths of the machine or control group",
            "bytes",
            0,
            1 << 50,
        ),
    ] = 0
    max_identity_memory_bytes: Annotated[
        int,
        documented(
            "the same for one identity's sessions. 0: half of `max-memory-bytes`; all of it for the broker's own user",
            "bytes",
            0,
            1 << 50,
        ),
    ] = 0
    min_free_memory_bytes: Annotated[
        int,
        documented(
            "memory that must be available to start a session or an eval; below half of it the largest session "
            "is ended. 0: a 32nd of all memory, 64 MiB to 512 MiB",
            "bytes",
            0,
            1 << 50,
        ),
    ] = 0
    max_environments: Annotated[int, documented("named environments (`@NAME`) on disk", "environments", 0, 100_000)] = (
        100
    )
    max_identity_environments: Annotated[int, documented("the same for one identity", "environments", 0, 100_000)] = 20
    max_concurrent_evals: Annotated[
        int, documented("evals running at once in the whole broker; 0 refuses all", "evals", 0, 10_000)
    ] = 10
    short_eval_slots: Annotated[
        int,
        documented(
            "slots of these reserved for short evals, limited to `max-eval-time-ms`; one slot is never reserved",
            "evals",
            0,
            10_000,
        ),
    ] = 2
    max_queued_evals: Annotated[
        int,
        documented(
            "queued evals of one identity; for the broker's own user and admins, of each agent", "evals", 0, 100_000
        ),
    ] = 20
    max_queued_total: Annotated[int, documented("queued evals in total", "evals", 0, 1_000_000)] = 200
    identity_share_percent: Annotated[
        int,
        documented(
            "share of each total (clients, sessions, slots, reads, subscriptions, keys) that one identity may "
            "hold; the broker's own user and admins may hold all",
            "percent",
            1,
            100,
        ),
    ] = 50
    reserve_percent: Annotated[
        int,
        documented("share of each total reserved for the broker's own user, root and admins", "percent", 0, 90),
    ] = 10
    rate_limit_per_min: Annotated[
        int,
        documented(
            "requests per 60 s, including refused ones: per connection of the broker's own user, per identity "
            "for others; 0: no limit",
            "requests",
            0,
            10_000_000,
        ),
    ] = 600
    control_rate_per_min: Annotated[
        int,
        documented(
            "`interrupt` and `close` requests per 60 s served beyond `rate-limit-per-min`", "requests", 0, 100_000
        ),
    ] = 60
    max_request_bytes_per_s: Annotated[
        int,
        documented(
            "bytes of requests longer than 4 KiB per second: per connection of the broker's own user, per "
            "identity for others; 0: no limit",
            "bytes",
            0,
            4096 * MIB,
        ),
    ] = 4 * MIB
    max_connections: Annotated[int, documented("connected clients", "clients", 1, 100_000)] = 100
    first_request_ms: Annotated[
        int,
        documented(
            "time until a connection's first request, or a remote client's authentication; 0: no limit", "ms", 0, DAY_MS
        ),
    ] = 30_000
    max_message_bytes: Annotated[int, documented("one request", "bytes", KIB, 256 * MIB)] = MIB
    max_stdin_bytes: Annotated[int, documented("input that a session has not read yet", "bytes", 1, 16 * MIB)] = (
        64 * KIB
    )
    max_waiting_reads: Annotated[
        int, documented("unanswered requests of one session, other than evals", "requests", 1, 100_000)
    ] = 100
    max_waiting_reads_total: Annotated[
        int, documented("the same for all sessions together", "requests", 1, 1_000_000)
    ] = 1_000
    ask_timeout_ms: Annotated[
        int,
        documented("time for a worker to answer a request other than an eval", "ms", 100, HOUR_MS),
    ] = 10_000
    max_idempotency_keys: Annotated[
        int,
        documented("stored idempotency keys; the oldest of the same identity is dropped first", "keys", 0, 1_000_000),
    ] = 1_000
    max_subscriptions: Annotated[int, documented("subscriptions of one connection", "requests", 0, 10_000)] = 20
    max_subscriptions_total: Annotated[int, documented("subscriptions of all connections", "requests", 0, 100_000)] = (
        500
    )
    event_ring: Annotated[
        int, documented("canonical events buffered per session for replay, oldest dropped first", "events", 0, 100_000)
    ] = 500
    event_ring_bytes: Annotated[int, documented("the same in bytes", "bytes", 0, 8 * MIB)] = 256 * KIB
    event_text_bytes: Annotated[
        int,
        documented(
            "code and output of one eval kept in events and transcripts: start of the code, end of the output",
            "bytes",
            256,
            MIB,
        ),
    ] = 64 * KIB
    session_idle_timeout_ms: Annotated[
        int, documented("idle time after which a session is closed; 0: never", "ms", 0, 365 * DAY_MS)
    ] = HOUR_MS
    worker_start_ms: Annotated[int, documented("time for a worker to become ready", "ms", 100, HOUR_MS)] = 20_000
    worker_adopt_ms: Annotated[
        int,
        documented("time for a worker to come back after a start of the broker; then it is lost", "ms", 100, HOUR_MS),
    ] = 10_000
    worker_silence_ms: Annotated[
        int,
        documented(
            "time without a heartbeat after which a worker is considered dead; heartbeats come three times as often",
            "ms",
            1_000,
            HOUR_MS,
        ),
    ] = 60_000
    hook_time_ms: Annotated[
        int,
        documented("time for hooks to decide on an eval, from its request; then it is blocked", "ms", 1, MINUTE_MS),
    ] = 2_000
    operation_time_ms: Annotated[
        int, documented("time for an operation of an extension, from its request", "ms", 1, DAY_MS)
    ] = MINUTE_MS
    max_operations: Annotated[
        int, documented("operations of extensions under way, for all clients", "operations", 1, 1_000)
    ] = 32
    approval_time_ms: Annotated[
        int,
        documented("validity of an approval's `id`", "ms", 1, HOUR_MS),
    ] = 5 * MINUTE_MS
    max_host_time_ms: Annotated[int, documented("time of `allow-hosts`", "ms", 1_000, 30 * DAY_MS)] = HOUR_MS
    close_grace_ms: Annotated[
        int,
        documented("time for running evals to end during shutdown, before they are killed", "ms", 0, HOUR_MS),
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
