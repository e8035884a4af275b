"""The broker's state: everything the core knows, and the replies to clients. Nothing is decided here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from replbroker.core.clients.access_control import AccessControl
from replbroker.core.clients.connections import Connections
from replbroker.core.clients.greetings import Greetings
from replbroker.core.clients.session_lookup import SessionLookup
from replbroker.core.clock import CoreClock
from replbroker.core.config import CoreConfig
from replbroker.core.effects import Effect, Log, Peer, ToClient
from replbroker.core.limits.fair_semaphore import FairSemaphore
from replbroker.core.limits.memory_totals import MemoryTotals
from replbroker.core.limits.quotas import Quotas
from replbroker.core.limits.sliding_window import SlidingWindow
from replbroker.core.observing.audit_trail import AuditTrail
from replbroker.core.observing.event_bus import EventBus
from replbroker.core.observing.event_emitter import EventEmitter
from replbroker.core.sessions.change_log import ChangeLog
from replbroker.core.sessions.eval_task import EvalTask, WorkerRequest
from replbroker.core.sessions.idempotency_cache import IdempotencyCache
from replbroker.core.sessions.named_environments import NamedEnvironments
from replbroker.core.sessions.session_records import SessionRecords
from replbroker.core.sessions.session_registry import SessionRegistry
from replbroker.core.sessions.snapshot_uploads import SnapshotUploads
from replwire.deadlines import Deadline, Deadlines
from replwire.events import LogInfo
from replwire.faults import FAULTS, RequestError
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.replies import Reply, encode


def error_fields(error: RequestError) -> dict[str, Any]:
    """Return the fields of the final message for a request that is not served."""
    fields = dict(error.fields)
    fields.pop("id", None)
    if FAULTS[error.code].retry:
        fields.setdefault("retry_after_ms", RETRY_AFTER_MS)
    return {"status": ["done", "error", error.code], "err": error.message, **fields}


def long_capacity(limits: Limits) -> int:
    """Return how many slots long evals may have."""
    return max(1, limits.max_concurrent_evals - limits.short_eval_slots)


class BrokerState:
    """The data of one broker.

    Attributes:
        effects: The effects of the current call, in order.
        changes: What the current call has changed, to be saved before its effects.
        routes: What a worker's reply is for, by its number.
        by_request: Evals whose client still waits.
        rate_windows: Requests of the last minute, by connection for the broker's own user, else by identity.
        ignored_fields: Unknown fields of open requests.
        protocol_errors: Malformed messages in a row.
        problems: Problems of the shell, for `stats`.
        introspectors: Functions that return snapshots of the shell's parts.
        new_route: Returns a number that was never used for another request.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.limits = limits = config.limits
        self.clock = CoreClock(config.monotonic_to_unix)
        self.effects: list[Effect] = []
        self.deadlines = Deadlines()
        self.counts: Counter[str] = Counter()

        self.access = AccessControl(config.broker_user, config.admins, config.credentials_of)
        self.quotas = Quotas(limits, config.identities.quotas(), self.access.admins)
        self.semaphore: FairSemaphore[EvalTask] = FairSemaphore(
            self.quotas, limits.max_concurrent_evals, long_capacity(limits)
        )
        self.memory = MemoryTotals(limits, config.broker_user)

        self.sessions = SessionRegistry()
        self.lookup = SessionLookup(self.sessions, self.access)
        self.changes = ChangeLog(self.clock)
        self.records = SessionRecords(self.changes)
        self.environments = NamedEnvironments(config.broker_user, config.environments)
        self.idempotency = IdempotencyCache(self.quotas, self.changes)
        self.earlier_instances: list[str] = []  # brokers whose keys are all known here
        self.uploads = SnapshotUploads(self.effects.append, self.deadlines)
        self.routes: dict[int, EvalTask | WorkerRequest] = {}
        self.by_request: dict[tuple[Peer, str], EvalTask] = {}
        self.new_route: Callable[[], int] = itertools.count(1).__next__

        self.connections = Connections(self.quotas, self.deadlines.cancel)
        self.greetings = Greetings()
        self.rate_windows: dict[Peer | str, SlidingWindow] = {}
        self.ignored_fields: dict[tuple[Peer, str], tuple[str, ...]] = {}
        self.protocol_errors: Counter[Peer] = Counter()

        self.audit = AuditTrail(self.effects.append, self.access.identity_of, self.clock, enabled=config.audit)
        self.bus = EventBus(
            limits,
            self.access,
            self.effects.append,
            self.clock,
            boot_id=config.boot_id,
            emit_all_events=config.emit_all_events,
            quotas=self.quotas,
        )
        self.emitter = EventEmitter(self.bus, limits)
        self.introspectors: dict[str, Callable[[], Any]] = {}
        self.problems: list[str] = []

        self.last_request = 0.0
        self.draining = False
        self.drain_deadline: Deadline | None = None

    # --- replies ---

    def reply(self, peer: Peer | None, request_id: str, **fields: Any) -> None:
        """Send one message to a client.

        Args:
            peer: The connection; None when no client waits any longer.
            request_id: The id of the request.
            fields: Fields of the reply. A status that begins with `done` ends the request.
        """
        if peer is None:
            return
        status: list[str] = fields.get("status") or []
        is_final = status[:1] == ["done"]
        if is_final and self.ignored_fields and (ignored := self.ignored_fields.pop((peer, request_id), None)):
            fields["ignored_fields"] = list(ignored)
        self.effects.append(ToClient(peer, encode(Reply(id=request_id, **fields))))
        if is_final:
            self.audit.finish(peer, request_id, status, fields.get("err"))

    def reply_error(self, peer: Peer | None, request_id: str, error: RequestError) -> None:
        """Send the final message for a request that is not served."""
        self.counts[f"refused.{error.code}"] += 1
        self.reply(peer, request_id, **error_fields(error))

    def limit_error(self, code: str, limit: str, err: str, **fields: Any) -> RequestError:
        """Return the error for a limit that was met, with its name and value."""
        value = getattr(self.limits, limit.replace("-", "_"))
        return RequestError(code, f"{err} ({limit} = {value})", limit=limit, limit_value=value, **fields)

    def log(self, text: str) -> None:
        """Write a line to the broker's log."""
        self.effects.append(Log(text))
        self.bus.emit(LogInfo, text=text)
