"""Everything the core knows, and how it speaks to clients. The moves are made in staff, evals and ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from replbroker.core.clients.access_control import AccessControl
from replbroker.core.clients.connections import Connections
from replbroker.core.clients.greetings import Greetings
from replbroker.core.clients.session_lookup import SessionLookup
from replbroker.core.effects import Effect, Log, Peer, ToClient
from replbroker.core.limits.fair_semaphore import FairSemaphore
from replbroker.core.limits.memory_totals import MemoryTotals
from replbroker.core.limits.quotas import QUEUE, Holder, Quotas
from replbroker.core.limits.sliding_window import SlidingWindow
from replbroker.core.observing.audit_trail import AuditTrail
from replbroker.core.observing.event_bus import EventBus
from replbroker.core.observing.event_emitter import EventEmitter
from replbroker.core.sessions.idempotency_cache import IdempotencyCache
from replbroker.core.sessions.named_environments import NamedEnvironments
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replbroker.core.sessions.session import EvalTask, Session, WorkerRequest
from replbroker.core.sessions.session_records import SessionRecords
from replbroker.core.sessions.session_registry import SessionRegistry
from replwire.agents import AgentRule, AgentRules
from replwire.deadlines import Deadline, Deadlines
from replwire.events import LogInfo
from replwire.faults import FAULTS, RequestError
from replwire.identities import Identities
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.ops import Request
from replwire.replies import Reply, encode
from replwire.requests import unknown_field_message


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """What the core is told once. `new_id` gives fresh unguessable ids: the core has no randomness of its own."""

    limits: Limits
    warm_workers: int
    idle_exit_ms: int  # 0: never
    new_id: Callable[[], str]
    monotonic_to_unix: Callable[[], float]  # Unix time of monotonic zero: moves when the wall clock is set
    started: float = 0.0  # monotonic
    runtimes: tuple[str, ...] = ("python",)  # the first is the default
    agents: AgentRules = field(default_factory=lambda: AgentRules([]))
    identities: Identities = field(default_factory=lambda: Identities([]))
    audit: bool = False
    sandbox: SandboxStatus = field(default_factory=SandboxStatus)
    broker_user: str = "self"  # the identity of the broker's user
    admins: frozenset[str] = frozenset()
    name_of_token: Callable[[str], str | None] = lambda _: None  # a look into a file
    versions: tuple[tuple[str, str], ...] = ()
    boot_id: str = "0"  # this start of the broker, in the ids of its events
    emit_all_events: bool = False  # whether the shell wants every canonical event
    credentials_of: Callable[[str], frozenset[object]] = lambda _: frozenset(
        [""]
    )  # keys of this name; a look into files
    environments: Callable[[], frozenset[str]] = frozenset  # those that are kept; a look into a directory
    has_hooks: bool = False  # whether the shell has hooks, which judge every eval
    introspectors: dict[str, Callable[[], Any]] = field(default_factory=dict)  # of the shell's parts, for `introspect`


def error_fields(refusal: RequestError) -> dict[str, Any]:
    """The fields of the terminal message for a request that is not served."""
    more = dict(refusal.fields)
    more.pop("id", None)
    if FAULTS[refusal.code].retry:
        more.setdefault("retry_after_ms", RETRY_AFTER_MS)
    return {"status": ["done", "error", refusal.code], "err": refusal.message, **more}


class BrokerState:
    """Plain data with two helpers: `say` to a client, `refuse` a request."""

    def __init__(self, setup: CoreConfig) -> None:
        self.config = setup
        self.limits = setup.limits
        self._cached_second, self._cached_prefix = -1, ""
        self.effects: list[Effect] = []
        self.sessions = SessionRegistry()
        self.access = AccessControl(setup.broker_user, setup.admins, setup.credentials_of)
        self.greetings = Greetings()
        self.records = SessionRecords(lambda effect: self.effects.append(effect))
        self.lookup = SessionLookup(self.sessions, self.access)
        self.quotas = Quotas(lambda: self.limits, setup.identities.quotas(), self.access.is_admin_identity)
        self.audit = AuditTrail(lambda effect: self.effects.append(effect), self.access.identity_of, setup.audit)
        self.bus = EventBus(
            setup.limits,
            self.access,
            lambda effect: self.effects.append(effect),
            lambda: self.audit.now,
            self.to_iso,
            boot=setup.boot_id,
            record=setup.emit_all_events,
            quotas=self.quotas,
        )
        self.emitter = EventEmitter(self.bus, setup.limits)
        self.semaphore: FairSemaphore[EvalTask] = FairSemaphore(
            self.quotas, lambda: self.limits.max_concurrent_evals, self._long_slots
        )
        self.deadlines = Deadlines()
        self.memory = MemoryTotals(setup.limits, setup.broker_user)
        self.environments = NamedEnvironments(setup.broker_user, setup.environments)
        self.idempotency = IdempotencyCache(self.quotas)
        self.routes: dict[int, EvalTask | WorkerRequest] = {}
        self.by_request: dict[tuple[Peer, str], EvalTask] = {}  # evals whose sender still waits
        self.rate_windows: dict[
            Peer | str, SlidingWindow
        ] = {}  # by connection for the broker's own user, else by identity
        self.ignored_fields: dict[tuple[Peer, str], tuple[str, ...]] = {}  # unknown fields of open requests, by request
        self.protocol_errors: Counter[Peer] = Counter()  # malformed messages in a row
        self.problems: list[str] = []  # of the shell's, for who asks how the broker is
        self.connections = Connections(self.quotas, lambda deadline: self.deadlines.cancel(deadline))
        self.counts: Counter[str] = Counter()
        self.last_request = 0.0
        self.draining = False
        self.drain_deadline: Deadline | None = None
        self._route = 0

    def next_route(self) -> int:
        """A number that was never used for another request."""
        self._route += 1
        return self._route

    def reply(self, peer: Peer | None, request_id: str, **fields: Any) -> None:
        """One message to a client, or to nobody when it has gone or stopped waiting."""
        if peer is None:
            return
        status: list[str] = fields.get("status") or []
        ends = status[:1] == ["done"]
        if ends and self.ignored_fields and (ignored := self.ignored_fields.pop((peer, request_id), None)):
            fields["ignored_fields"] = list(ignored)
        self.effects.append(ToClient(peer, encode(Reply(id=request_id, **fields))))
        if ends:
            self.audit.finish(peer, request_id, status, fields.get("err"))

    def check_fields(self, peer: Peer, request: Request) -> None:
        """Refuse what is to open a session and has a field that its operation does not have: it might be one that
        tightens, misspelt, or of a newer protocol. Raises Refusal."""
        if self.ignored_fields and (ignored := self.ignored_fields.get((peer, request.id))):
            raise RequestError(
                "invalid-request", unknown_field_message(request.op, ignored[0]), hint="nothing was opened"
            )

    def reply_error(self, peer: Peer | None, request_id: str, refusal: RequestError) -> None:
        """The terminal message for a request that is not served."""
        self.counts[f"refused.{refusal.code}"] += 1
        self.reply(peer, request_id, **error_fields(refusal))

    def limit_error(self, word: str, limit: str, err: str, **more: Any) -> RequestError:
        """A refusal by a limit, which is named with its value."""
        value = getattr(self.limits, limit.replace("-", "_"))
        return RequestError(word, f"{err} ({limit} = {value})", limit=limit, limit_value=value, **more)

    def _long_slots(self) -> int:
        return max(1, self.limits.max_concurrent_evals - self.limits.short_eval_slots)

    def holder(self, request: Request, peer: Peer) -> Holder:
        """On whose account a request is: its agent's, or that of a client that names none."""
        return Holder(self.access.identity_of(peer), request.agent or f"peer {peer.hex()}")

    def check_queue(self, holder: Holder) -> None:
        """Whether one more eval of this agent may wait. Raises Refusal."""
        if self.semaphore.capacity == 0:
            raise self.limit_error("concurrency-limit-reached", "max-concurrent-evals", "Too many concurrent evals")
        no_queue = not min(self.limits.max_queued_evals, self.limits.max_queued_total)
        if no_queue and self.config.has_hooks and not self.quotas.used_by(QUEUE, holder.identity):
            return  # all wait for hooks, if only for a moment
        self.quotas.check(QUEUE, holder, queue_position=self.quotas.total(QUEUE))

    def rule(self, request: Request) -> AgentRule | None:
        """What the config says of the request's agent."""
        return self.config.agents.rule(request.agent, request.binding)

    def acts_as(self, identity: str) -> str:
        """The host user with whose rights sessions of this identity have files opened."""
        return self.config.identities.acts_as(identity, self.config.broker_user)

    def log(self, text: str) -> None:
        """A line for the log."""
        self.effects.append(Log(text))
        self.bus.emit(LogInfo, text=text)

    def to_iso(self, when: float) -> str:
        """A monotonic moment as ISO 8601, UTC, in today's wall time."""
        at = self.config.monotonic_to_unix() + when
        second = int(at)
        if second != self._cached_second:  # all but the end is the same for all events of a second
            self._cached_second, self._cached_prefix = second, datetime.fromtimestamp(second, UTC).isoformat()[:-6]
        return f"{self._cached_prefix}.{int((at - second) * 1000):03d}+00:00"

    def to_unix(self, when: float) -> float:
        """A monotonic moment as Unix seconds."""
        return round(self.config.monotonic_to_unix() + when, 3)

    def mark_active(self, session: Session, now: float) -> None:
        """The session was used: the idle sweep starts counting anew."""
        session.last_active = now
