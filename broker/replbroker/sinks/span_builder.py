"""Builds spans from events: one trace for each eval, for each session's life and for each worker's start.

A span begins and ends at the times of its events, not when it is built. Names and attributes follow OpenTelemetry's
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

_MAX_OPEN = 10_000  # spans of a kind that wait for their end
_T = TypeVar("_T")
_extract = TraceContextTextMapPropagator().extract
_ROOT_CONTEXT = Context()  # without the current context of the thread


class _OpenSpans(Generic[_T]):
    """Spans that have begun and not ended; when there are too many, the oldest is dropped, for its end was lost.

    Attributes:
        evicted_count: How many were dropped.
    """

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
    """A live session."""

    span: Span | None  # None for an ephemeral session
    name: str | None
    runtime: str


class _EvalSpan:
    """An eval that has not ended."""

    def __init__(self, accepted: events.EvalAccepted, at: int) -> None:
        self.accepted = accepted
        self.accepted_at = at
        self.started_at: int | None = None
        self.worker = 0
        self.interrupts: list[tuple[int, str]] = []


class SpanBuilder:
    """Builder of spans, which go to the tracer's processor when they end.

    Args:
        tracer: Creates spans.
        include_code: Whether spans have the code of evals.

    Attributes:
        event_types: Types of the events that spans are built from.
    """

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
            events.SessionBranched: self._on_session_changed,
            events.SessionReset: self._on_session_changed,
            events.SessionLost: self._on_session_changed,
            events.SessionRolledBack: self._on_session_changed,
            events.SessionHibernated: self._on_session_changed,
            events.SessionResumed: self._on_session_changed,
            events.SessionMoved: self._on_session_changed,
            events.SessionClosed: self._on_session_closed,
            events.WorkerSpawned: self._on_worker_spawned,
            events.WorkerReady: self._on_worker_ready,
            events.WorkerExited: self._on_worker_exited,
        }
        self.event_types = frozenset(map(type_name, self._handlers))

    @property
    def evicted_count(self) -> int:
        """Spans that were dropped because their end never came."""
        return self._evals.evicted_count + self._sessions.evicted_count + self._workers.evicted_count

    def handle_event(self, body: bytes, at: int) -> None:
        """Handle an event, in order of the events' times.

        Args:
            body: The event as JSON.
            at: Its time, in nanoseconds of Unix time.
        """
        event = events.decode(body)
        self._handlers[type(event)](event, at)

    def finish(self, at: int) -> None:
        """End the spans of live sessions with the broker, at this time in nanoseconds of Unix time."""
        for session in self._sessions.drain():
            if session.span is not None:
                session.span.end(at)

    # --- evals ---

    def _on_accepted(self, event: events.EvalAccepted, at: int) -> None:
        self._evals.put((event.session, event.eval), _EvalSpan(event, at))

    def _on_started(self, event: events.EvalStarted, at: int) -> None:
        open_eval = self._evals.get((event.session, event.eval))
        if open_eval is not None:
            open_eval.started_at, open_eval.worker = at, event.worker

    def _on_interrupt_requested(self, event: events.EvalInterruptRequested, at: int) -> None:
        open_eval = self._evals.get((event.session, event.eval))
        if open_eval is not None:
            open_eval.interrupts.append((at, event.by))

    def _on_finished(self, event: events.EvalFinished, at: int) -> None:
        open_eval = self._evals.pop((event.session, event.eval), None)
        if open_eval is None:  # its first event was lost, and counted
            return
        accepted, session = open_eval.accepted, self._sessions.get(event.session)
        parent = _ROOT_CONTEXT
        if accepted.traceparent is not None:
            parent = _extract({"traceparent": accepted.traceparent}, _ROOT_CONTEXT)
        links = [] if session is None or session.span is None else [Link(session.span.get_span_context())]
        span = self._tracer.start_span(
            accepted.op,
            parent,
            SpanKind.SERVER,
            self._attributes(open_eval, event, session),
            links,
            open_eval.accepted_at,
        )
        context = set_span_in_context(span, _ROOT_CONTEXT)
        for when, by in open_eval.interrupts:
            span.add_event("interrupt-requested", {"replctl.by": by}, when)
        turn = at if open_eval.started_at is None else open_eval.started_at
        self._tracer.start_span("queue", context, start_time=open_eval.accepted_at).end(turn)
        if open_eval.started_at is not None:
            ran = self._tracer.start_span("run", context, start_time=turn)
            _set_status(ran, event)
            ran.end(at)
        _set_status(span, event)
        span.end(at)

    def _attributes(
        self, open_eval: _EvalSpan, finished: events.EvalFinished, session: _SessionSpan | None
    ) -> dict[str, Any]:
        accepted = open_eval.accepted
        attributes = {
            "session.id": accepted.session,
            "gen_ai.agent.name": accepted.agent,
            "replctl.session.name": None if session is None else session.name,
            "replctl.runtime": None if session is None else session.runtime,
            "replctl.op": accepted.op,
            "replctl.eval.id": accepted.eval,
            "replctl.epoch": accepted.epoch,
            "replctl.request.id": accepted.request_id,
            "replctl.worker": open_eval.worker or None,
            "replctl.status": finished.status,
            "replctl.state": finished.state,
            "replctl.code": accepted.code if self._include_code else None,
        }
        return {key: value for key, value in attributes.items() if value is not None}

    # --- sessions ---

    def _on_session_created(self, event: events.SessionCreated, at: int) -> None:
        span = None
        if not event.ephemeral:
            attributes = {
                "session.id": event.session,
                "replctl.session.name": event.name,
                "replctl.runtime": event.runtime,
                "gen_ai.agent.name": event.agent,
            }
            known = {key: value for key, value in attributes.items() if value is not None}
            span = self._tracer.start_span("session", _ROOT_CONTEXT, attributes=known, start_time=at)
        self._sessions.put(event.session, _SessionSpan(span, event.name, event.runtime))

    def _on_session_changed(self, event: Any, at: int) -> None:
        session = self._sessions.get(event.session)
        if session is not None and session.span is not None:
            session.span.add_event(type_name(type(event)), _epoch_attributes(event), at)

    def _on_session_closed(self, event: events.SessionClosed, at: int) -> None:
        session = self._sessions.pop(event.session, None)
        if session is not None and session.span is not None:
            session.span.set_attribute("replctl.reason", event.reason)
            session.span.end(at)

    # --- workers ---

    def _on_worker_spawned(self, event: events.WorkerSpawned, at: int) -> None:
        self._workers.put(event.worker, (event, at))

    def _on_worker_ready(self, event: events.WorkerReady, at: int) -> None:
        self._end_worker_start(event.worker, at, None)

    def _on_worker_exited(self, event: events.WorkerExited, at: int) -> None:
        self._end_worker_start(event.worker, at, event.cause)

    def _end_worker_start(self, worker: int, at: int, cause: str | None) -> None:
        spawned, since = self._workers.pop(worker, (None, 0))
        if spawned is None:  # it was ready before
            return
        attributes: dict[str, str | int] = {"replctl.worker": worker, "replctl.runtime": spawned.runtime}
        if spawned.environment is not None:
            attributes["replctl.environment"] = spawned.environment
        span = self._tracer.start_span("worker start", _ROOT_CONTEXT, attributes=attributes, start_time=since)
        if cause is not None:
            span.set_attribute("error.type", "worker-lost")
            span.set_status(StatusCode.ERROR, cause)
        span.end(at)


def _epoch_attributes(event: Any) -> dict[str, int]:
    epoch = getattr(event, "epoch", None)
    return {} if epoch is None else {"replctl.epoch": epoch}


def _set_status(span: Span, event: events.EvalFinished) -> None:
    """Set how an eval ended; of an exception only the type is exported, never the message."""
    if event.status in ("ok", "cancelled"):
        return
    fault = find_fault(event.reply_status)
    if fault is None:
        span.set_attribute("error.type", event.error_type or "_OTHER")
        span.set_status(StatusCode.ERROR)
    else:
        span.set_attribute("error.type", fault.code)
        span.set_status(StatusCode.ERROR, event.cause or fault.meaning)
