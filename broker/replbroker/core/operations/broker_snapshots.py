"""Read-only snapshots of the broker's parts, for `introspect`. No worker is asked, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from replbroker.core.observing.event_bus import Subscription
from replbroker.core.operations import views
from replbroker.core.scheduling.worker import Worker
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.state import BrokerState
from replwire.faults import RequestError

_MAX_ROWS = 200  # of one snapshot


def take_snapshots(state: BrokerState, pool: WorkerPool, name: str | None, now: float) -> dict[str, Any]:
    """Return all snapshots, or one. A snapshot that fails has its error in its place.

    Args:
        state: The broker's state.
        pool: Its workers.
        name: The one to take; None for all.
        now: Seconds, monotonic.

    Raises:
        RequestError: `invalid-request` for an unknown name.
    """
    semaphore = state.semaphore
    table: dict[str, Callable[[], Any]] = {
        "stats": lambda: views.stats(state, pool, now),
        "quotas": lambda: views.quotas(state),
        "sessions": lambda: _rows(views.session_entry(state, session, now) for session in state.sessions),
        "workers": lambda: _rows(_worker(worker, now) for worker in pool.workers.values()),
        "eval-semaphore": lambda: {"slots": semaphore.capacity, "taken": semaphore.in_use, "waiting": len(semaphore)},
        "subscriptions": lambda: _rows(map(_subscription, state.bus.all())),
        "metrics": lambda: state.emitter.metrics.snapshot(),
        "limits": lambda: msgspec.to_builtins(state.limits),
        **state.introspectors,
    }
    if name is not None and name not in table:
        raise RequestError("invalid-request", f"no snapshot {name}: {', '.join(table)}")
    return {each: _try_snapshot(take) for each, take in table.items() if name in (None, each)}


def _try_snapshot(take: Callable[[], Any]) -> Any:
    try:
        return take()
    except Exception as error:  # noqa: BLE001 - the others are still worth showing
        return {"error": f"{type(error).__name__}: {error}"}


def _rows(items: Iterable[Any]) -> dict[str, Any]:
    rows = [row if isinstance(row, dict) else msgspec.to_builtins(row) for row in items]
    return {"total": len(rows), "rows": rows[:_MAX_ROWS]}


def _worker(worker: Worker, now: float) -> dict[str, Any]:
    return {
        "worker": worker.number,
        "runtime": str(worker.spec),
        "state": worker.state,
        "session": None if worker.session is None else worker.session.id,
        "last-seen-ms-ago": round((now - worker.last_seen) * 1000),
        "cpu-seconds": worker.usage.cpu_seconds,
        "memory-bytes": worker.usage.memory_bytes,
    }


def _subscription(subscription: Subscription) -> dict[str, Any]:
    return {
        "id": subscription.request_id,
        "identity": subscription.holder.identity,
        "session": subscription.session,
        "types": sorted(subscription.types),
    }
