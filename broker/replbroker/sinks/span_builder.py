"""From events to spans: one trace for each eval, one for each session's life and each worker's start.

A span begins and ends when the broker says so, not when it is made here. Names and attributes follow OpenTelemetry's
semantic conventions where there are some (`session.id`, `error.type`, `gen_ai.agent.name`); the rest is `replctl.*`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from replwire import events
from replwire.events import Event, type_name
from replwire.faults import find_fault

_MAX_OPEN = 10_000  # of a kind that wait for their end
_T = TypeVar("_T")
_extract = TraceContextTextMapPropagator().extract
_ROOT_CONTEXT = Context()  # nothing of this thread


class _OpenSpans(Generic[_T]):
    """What has begun and not ended. The oldest goes when there are too many: its end was lost."""

    def __init__(self) -> None:
        self._items: OrderedDict[Any, _T] = OrderedDict()
        self.evicted_count = 0
        self.pop = self._items.pop
        self.get = self._items.get

    def put(self, key: Any, item: _T) -> None:
        self._items[key] = item
        if len(self._items) > _MAX_OPEN:
            self._items.popitem(last=False)
            self.evicted_count += 1

    def drain(self) -> list[_T]:
        items = list(self._items.values())
        self._items.clear()
        return items


class _SessionSpan(NamedTuple):
    """A session that is there."""

    span: Span | None  # a throw-away session has none
    name: str | None
    runtime: str


class _EvalSpan:
    """An eval that is under way."""

    def __init__(self, accepted: events.EvalAccepted, at: int) -> None:
        self.accepted = accepted
        self.accepted_at = at
        self.started_at: int | None = None
        self.worker = 0
        self.interrupts: list[tuple[int, str]] = []


class SpanBuilder:
    """Takes events, in order. `at` is in nanoseconds of Unix time. Spans that end go to the tracer's processor."""

    def __init__(self, tracer: Tracer, include_code: bool) -> None:
        self._tracer = tracer
        self._include_code = include_code
        self._evals: _OpenSpans[_EvalSpan] = _OpenSpans()
        self._sessions: _OpenSpans[_SessionSpan] = _OpenSpans()
        self._workers: _OpenSpans[tuple[events.WorkerSpawned, int]] = _OpenSpans()
        self._handlers: dict[type[Event], Callable[[Any, int], None]] = {
            events.EvalAccepted: self._on_accepted,
            events.EvalStarted: self._on_started,
            events.EvalInterruptRequested: self._on_interrupt_requested,
            events.EvalFinished: self._on_finished,
            events.SessionCreated: self._on_session_created,
            events.SessionForked: self._on_session_changed,
            events.SessionReset: self._on_session_changed,
            events.SessionLost: self._on_session_changed,
            events.SessionMoved: self._on_session_changed,
            events.SessionClosed: self._on_session_closed,
            events.WorkerSpawned: self._on_worker_spawned,
            events.WorkerReady: self._on_worker_ready,
            events.WorkerExited: self._on_worker_exited,
        }
        self.event_types = frozenset(map(type_name, self._handlers))

    @property
    def evicted_count(self) -> int:
        """What began here, and whose end never came."""
        return self._evals.evicted_count + self._sessions.evicted_count + self._workers.evicted_count

    def handle_event(self, body: bytes, at: int) -> None:
        """One event."""
        event = events.decode(body)
        self._handlers[type(event)](event, at)

    def finish(self, at: int) -> None:
        """The broker ends: sessions that are still there end with it."""
        for life in self._sessions.drain():
            if life.span is not None:
                life.span.end(at)

    # --- evals ---

    def _on_accepted(self, event: events.EvalAccepted, at: int) -> None:
        self._evals.put((event.session, event.eval), _EvalSpan(event, at))

    def _on_started(self, event: events.EvalStarted, at: int) -> None:
        under_way = self._evals.get((event.session, event.eval))
        if under_way is not None:
            under_way.started_at, under_way.worker = at, event.worker

    def _on_interrupt_requested(self, event: events.EvalInterruptRequested, at: int) -> None:
        under_way = self._evals.get((event.session, event.eval))
        if under_way is not None:
            under_way.interrupts.append((at, event.by))

    def _on_finished(self, event: events.EvalFinished, at: int) -> None:
        under_way = self._evals.pop((event.session, event.eval), None)
        if under_way is None:  # its beginning was lost, and counted
            return
        accepted, life = under_way.accepted, self._sessions.get(event.session)
        parent = _ROOT_CONTEXT
        if accepted.traceparent is not None:
            parent = _extract({"traceparent": accepted.traceparent}, _ROOT_CONTEXT)
        links = [] if life is None or life.span is None else [Link(life.span.get_span_context())]
        span = self._tracer.start_span(
            accepted.op, parent, SpanKind.SERVER, self._attributes(under_way, event, life), links, under_way.accepted_at
        )
        inside = set_span_in_context(span, _ROOT_CONTEXT)
        for when, by in under_way.interrupts:
            span.add_event("interrupt-requested", {"replctl.by": by}, when)
        turn = at if under_way.started_at is None else under_way.started_at
        self._tracer.start_span("queue", inside, start_time=under_way.accepted_at).end(turn)
        if under_way.started_at is not None:
            ran = self._tracer.start_span("run", inside, start_time=turn)
            _set_status(ran, event)
            ran.end(at)
        _set_status(span, event)
        span.end(at)

    def _attributes(
        self, under_way: _EvalSpan, finished: events.EvalFinished, life: _SessionSpan | None
    ) -> dict[str, Any]:
        accepted = under_way.accepted
        about = {
            "session.id": accepted.session,
            "gen_ai.agent.name": accepted.agent,
            "replctl.session.name": None if life is None else life.name,
            "replctl.runtime": None if life is None else life.runtime,
            "replctl.op": accepted.op,
            "replctl.eval.id": accepted.eval,
            "replctl.epoch": accepted.epoch,
            "replctl.request.id": accepted.request_id,
            "replctl.worker": under_way.worker or None,
            "replctl.status": finished.status,
            "replctl.state": finished.state,
            "replctl.code": accepted.code if self._include_code else None,
        }
        return {key: value for key, value in about.items() if value is not None}

    # --- sessions ---

    def _on_session_created(self, event: events.SessionCreated, at: int) -> None:
        span = None
        if not event.ephemeral:
            about = {
                "session.id": event.session,
                "replctl.session.name": event.name,
                "replctl.runtime": event.runtime,
                "gen_ai.agent.name": event.agent,
            }
            kept = {key: value for key, value in about.items() if value is not None}
            span = self._tracer.start_span("session", _ROOT_CONTEXT, attributes=kept, start_time=at)
        self._sessions.put(event.session, _SessionSpan(span, event.name, event.runtime))

    def _on_session_changed(self, event: Any, at: int) -> None:
        life = self._sessions.get(event.session)
        if life is not None and life.span is not None:
            life.span.add_event(type_name(type(event)), _epoch_attributes(event), at)

    def _on_session_closed(self, event: events.SessionClosed, at: int) -> None:
        life = self._sessions.pop(event.session, None)
        if life is not None and life.span is not None:
            life.span.set_attribute("replctl.reason", event.reason)
            life.span.end(at)

    # --- workers ---

    def _on_worker_spawned(self, event: events.WorkerSpawned, at: int) -> None:
        self._workers.put(event.worker, (event, at))

    def _on_worker_ready(self, event: events.WorkerReady, at: int) -> None:
        self._end_worker_start(event.worker, at, None)

    def _on_worker_exited(self, event: events.WorkerExited, at: int) -> None:
        self._end_worker_start(event.worker, at, event.cause)

    def _end_worker_start(self, worker: int, at: int, cause: str | None) -> None:
        spawned, since = self._workers.pop(worker, (None, 0))
        if spawned is None:  # it was up long ago
            return
        about: dict[str, str | int] = {"replctl.worker": worker, "replctl.runtime": spawned.runtime}
        if spawned.environment is not None:
            about["replctl.environment"] = spawned.environment
        span = self._tracer.start_span("worker start", _ROOT_CONTEXT, attributes=about, start_time=since)
        if cause is not None:
            span.set_attribute("error.type", "worker-lost")
            span.set_status(StatusCode.ERROR, cause)
        span.end(at)


def _epoch_attributes(event: Any) -> dict[str, int]:
    epoch = getattr(event, "epoch", None)
    return {} if epoch is None else {"replctl.epoch": epoch}


def _set_status(span: Span, event: events.EvalFinished) -> None:
    """How it ended. The code's own words are never told, only the type of its exception."""
    if event.status in ("ok", "cancelled"):
        return
    fault = find_fault(event.words)
    if fault is None:
        span.set_attribute("error.type", event.error_type or "_OTHER")
        span.set_status(StatusCode.ERROR)
    else:
        span.set_attribute("error.type", fault.code)
        span.set_status(StatusCode.ERROR, event.cause or fault.meaning)
