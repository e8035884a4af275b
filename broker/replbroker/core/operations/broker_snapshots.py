"""Read-only snapshots of the broker's parts: what `introspect` shows. No worker is asked, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.operations import views
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.state import BrokerState
from replwire.faults import RequestError

_MAX_ROWS = 200  # rows of one snapshot


def take_snapshots(state: BrokerState, staff: WorkerPool, name: str | None, now: float) -> dict[str, Any]:
    """All, or the one of this name. Raises Refusal `invalid-request`. One that fails says so in its place."""
    table: dict[str, Callable[[], Any]] = {
        "stats": lambda: views.stats(state, staff, now),
        "quotas": lambda: views.quotas(state),
        "sessions": lambda: _rows(views.session_entry(state, session, now) for session in state.sessions),
        "workers": lambda: _rows(_worker(worker, now) for worker in staff.workers.values()),
        "gate": lambda: {
            "slots": state.semaphore.capacity,
            "taken": state.semaphore.in_use,
            "waiting": len(state.semaphore),
        },
        "subscriptions": lambda: _rows(_subscription(each) for each in state.bus.all()),
        "figures": lambda: state.emitter.metrics.snapshot(),
        "limits": lambda: msgspec.to_builtins(state.limits),
        **state.config.introspectors,
    }
    if name is not None and name not in table:
        raise RequestError("invalid-request", f"no snapshot {name}: {', '.join(table)}")
    return {each: _try_snapshot(make) for each, make in table.items() if name in (None, each)}


def _try_snapshot(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the others are still worth showing
        return {"error": f"{type(error).__name__}: {error}"}


def _rows(some: Any) -> dict[str, Any]:
    rows = [row if isinstance(row, dict) else msgspec.to_builtins(row) for row in some]
    return {"total": len(rows), "rows": rows[:_MAX_ROWS]}


def _worker(worker: Any, now: float) -> dict[str, Any]:
    return {
        "worker": worker.number,
        "runtime": str(worker.spec),
        "state": worker.state,
        "session": None if worker.session is None else worker.session.id,
        "heard-ms-ago": round((now - worker.heard) * 1000),
        "cpu-seconds": worker.usage.cpu_seconds,
        "memory-bytes": worker.usage.memory_bytes,
    }


def _subscription(each: Any) -> dict[str, Any]:
    return {
        "id": each.request_id,
        "identity": each.holder.identity,
        "session": each.session,
        "types": sorted(each.types),
    }
