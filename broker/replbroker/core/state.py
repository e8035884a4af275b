"""Everything the core knows, and how it speaks to clients. The moves are made in staff, evals and ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from replbroker.core.access import Access
from replbroker.core.audit import Trail
from replbroker.core.bus import Bus
from replbroker.core.connections import Connections
from replbroker.core.effects import Effect, Note, Peer, ToClient
from replbroker.core.environments import Environments
from replbroker.core.gate import Gate
from replbroker.core.greetings import Greetings
from replbroker.core.keys import Keys
from replbroker.core.lookup import SessionLookup
from replbroker.core.memory import MemorySums
from replbroker.core.news import News
from replbroker.core.quotas import QUEUE, Holder, Quotas
from replbroker.core.rate import Window
from replbroker.core.records import SessionRecords
from replbroker.core.registry import Registry
from replbroker.core.sandbox import Sandbox
from replbroker.core.session import Ask, Job, Session
from replwire.agents import Agents, Rule
from replwire.deadlines import Deadline, Deadlines
from replwire.events import LogInfo
from replwire.faults import FAULTS, Refusal
from replwire.identities import Identities
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.ops import Request
from replwire.replies import Reply, encode
from replwire.requests import no_such_field


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the core is told once. `new_id` gives fresh unguessable ids: the core has no randomness of its own."""

    limits: Limits
    warm_workers: int
    idle_exit_ms: int  # 0: never
    new_id: Callable[[], str]
    wall: Callable[[], float]  # Unix time of monotonic zero: moves when the wall clock is set
    started: float = 0.0  # monotonic
    runtimes: tuple[str, ...] = ("python",)  # the first is the default
    agents: Agents = field(default_factory=lambda: Agents([]))
    identities: Identities = field(default_factory=lambda: Identities([]))
    audit: bool = False
    sandbox: Sandbox = field(default_factory=Sandbox)
    own: str = "self"  # the identity of the broker's user
    admins: frozenset[str] = frozenset()
    name_of_token: Callable[[str], str | None] = lambda _: None  # a look into a file
    versions: tuple[tuple[str, str], ...] = ()
    boot: str = "0"  # this start of the broker, in the ids of its events
    record: bool = False  # whether the shell wants every canonical event
    standing: Callable[[str], frozenset[object]] = lambda _: frozenset([""])  # keys of this name; a look into files
    environments: Callable[[], frozenset[str]] = frozenset  # those that are kept; a look into a directory
    hooks: bool = False  # whether the shell has hooks, which judge every eval
    snapshots: dict[str, Callable[[], Any]] = field(default_factory=dict)  # of the shell's parts, for `introspect`


def refused(refusal: Refusal) -> dict[str, Any]:
    """The fields of the terminal message for a request that is not served."""
    more = dict(refusal.more)
    more.pop("id", None)
    if FAULTS[refusal.word].retry:
        more.setdefault("retry_after_ms", RETRY_AFTER_MS)
    return {"status": ["done", "error", refusal.word], "err": refusal.err, **more}


class State:
    """Plain data with two helpers: `say` to a client, `refuse` a request."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.limits = setup.limits
        self._second, self._until = -1, ""
        self.out: list[Effect] = []
        self.sessions = Registry()
        self.access = Access(setup.own, setup.admins, setup.standing)
        self.greetings = Greetings()
        self.records = SessionRecords(lambda effect: self.out.append(effect))
        self.lookup = SessionLookup(self.sessions, self.access)
        self.quotas = Quotas(lambda: self.limits, setup.identities.quotas(), self.access.is_admin_identity)
        self.trail = Trail(lambda effect: self.out.append(effect), self.access.of, setup.audit)
        self.bus = Bus(
            setup.limits,
            self.access,
            lambda effect: self.out.append(effect),
            lambda: self.trail.now,
            self.iso,
            boot=setup.boot,
            record=setup.record,
            quotas=self.quotas,
        )
        self.news = News(self.bus, setup.limits)
        self.gate: Gate[Job] = Gate(self.quotas, lambda: self.limits.max_concurrent_evals, self._long_slots)
        self.deadlines = Deadlines()
        self.memory = MemorySums(setup.limits, setup.own)
        self.environments = Environments(setup.own, setup.environments)
        self.keys = Keys(self.quotas)
        self.routes: dict[int, Job | Ask] = {}
        self.by_request: dict[tuple[Peer, str], Job] = {}  # evals whose sender still waits
        self.windows: dict[Peer | str, Window] = {}  # by connection for the broker's own user, else by identity
        self.ignored: dict[tuple[Peer, str], tuple[str, ...]] = {}  # unknown fields of open requests, by request
        self.strikes: Counter[Peer] = Counter()  # malformed messages in a row
        self.troubles: list[str] = []  # of the shell's, for who asks how the broker is
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

    def say(self, peer: Peer | None, request_id: str, **fields: Any) -> None:
        """One message to a client, or to nobody when it has gone or stopped waiting."""
        if peer is None:
            return
        status: list[str] = fields.get("status") or []
        ends = status[:1] == ["done"]
        if ends and self.ignored and (ignored := self.ignored.pop((peer, request_id), None)):
            fields["ignored_fields"] = list(ignored)
        self.out.append(ToClient(peer, encode(Reply(id=request_id, **fields))))
        if ends:
            self.trail.end(peer, request_id, status, fields.get("err"))

    def check_fields(self, peer: Peer, request: Request) -> None:
        """Refuse what is to open a session and has a field that its operation does not have: it might be one that
        tightens, misspelt, or of a newer protocol. Raises Refusal."""
        if self.ignored and (ignored := self.ignored.get((peer, request.id))):
            raise Refusal("invalid-request", no_such_field(request.op, ignored[0]), hint="nothing was opened")

    def refuse(self, peer: Peer | None, request_id: str, refusal: Refusal) -> None:
        """The terminal message for a request that is not served."""
        self.counts[f"refused.{refusal.word}"] += 1
        self.say(peer, request_id, **refused(refusal))

    def full(self, word: str, limit: str, err: str, **more: Any) -> Refusal:
        """A refusal by a limit, which is named with its value."""
        value = getattr(self.limits, limit.replace("-", "_"))
        return Refusal(word, f"{err} ({limit} = {value})", limit=limit, limit_value=value, **more)

    def _long_slots(self) -> int:
        return max(1, self.limits.max_concurrent_evals - self.limits.short_eval_slots)

    def holder(self, request: Request, peer: Peer) -> Holder:
        """On whose account a request is: its agent's, or that of a client that names none."""
        return Holder(self.access.of(peer), request.agent or f"peer {peer.hex()}")

    def check_queue(self, holder: Holder) -> None:
        """Whether one more eval of this agent may wait. Raises Refusal."""
        if self.gate.slots == 0:
            raise self.full("concurrency-limit-reached", "max-concurrent-evals", "Too many concurrent evals")
        no_queue = not min(self.limits.max_queued_evals, self.limits.max_queued_total)
        if no_queue and self.setup.hooks and not self.quotas.held(QUEUE, holder.identity):
            return  # all wait for hooks, if only for a moment
        self.quotas.check(QUEUE, holder, queue_position=self.quotas.total(QUEUE))

    def rule(self, request: Request) -> Rule | None:
        """What the config says of the request's agent."""
        return self.setup.agents.rule(request.agent, request.binding)

    def acts_as(self, identity: str) -> str:
        """The host user with whose rights sessions of this identity have files opened."""
        return self.setup.identities.acts_as(identity, self.setup.own)

    def note(self, text: str) -> None:
        """A line for the log."""
        self.out.append(Note(text))
        self.bus.tell(LogInfo, text=text)

    def iso(self, when: float) -> str:
        """A monotonic moment as ISO 8601, UTC, in today's wall time."""
        at = self.setup.wall() + when
        second = int(at)
        if second != self._second:  # all but the end is the same for all events of a second
            self._second, self._until = second, datetime.fromtimestamp(second, UTC).isoformat()[:-6]
        return f"{self._until}.{int((at - second) * 1000):03d}+00:00"

    def unix(self, when: float) -> float:
        """A monotonic moment as Unix seconds."""
        return round(self.setup.wall() + when, 3)

    def touch(self, session: Session, now: float) -> None:
        """The session was used: the idle sweep starts counting anew."""
        session.active = now
