"""The metrics of a broker as plain data, for exporters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from replbroker.core.observing.metrics import Metrics
from replbroker.core.operations.views import queued_by_agent, quotas
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.state import BrokerState


class BrokerMetrics(NamedTuple):
    """Counters, histograms and current usage of a broker.

    Attributes:
        version: The version of the broker, or an empty string.
        metrics: Histograms and counters of evals.
        errors: Requests that were refused, by code.
        workers: Workers by state.
        sessions: Sessions, ephemeral ones included.
        connections: Clients connected.
        slots_in_use: Evals that have a slot.
        slots: Evals that may run at once.
        queued: Evals that wait, by agent.
        quotas: Usage and quota of identities, by the limit's name.
        subscriptions: Subscriptions to events.
        memory_bytes: Memory of workers, by agent.
        parts: Snapshots of transcripts and traces, where the shell has them.
    """

    version: str
    metrics: Metrics
    errors: Mapping[str, int]
    workers: Mapping[str, int]
    sessions: int
    connections: int
    slots_in_use: int
    slots: int
    queued: Mapping[str, int]
    quotas: Mapping[str, Any]
    subscriptions: int
    memory_bytes: Mapping[str, int]
    parts: Mapping[str, Any]


def read_metrics(state: BrokerState, pool: WorkerPool) -> BrokerMetrics:
    """Return the current metrics of a broker."""
    memory: dict[str, int] = {}
    for worker in pool.workers.values():
        if worker.session is not None:
            agent = worker.session.agent or ""
            memory[agent] = memory.get(agent, 0) + worker.usage.memory_bytes
    counts = state.counts.items()
    return BrokerMetrics(
        version=dict(state.config.versions).get("replctl", ""),
        metrics=state.emitter.metrics,
        errors={key.removeprefix("refused."): count for key, count in counts if key.startswith("refused.")},
        workers=pool.count_by_state(),
        sessions=len(state.sessions),
        connections=len(state.connections),
        slots_in_use=state.semaphore.in_use,
        slots=state.semaphore.capacity,
        queued=queued_by_agent(state),
        quotas=quotas(state),
        subscriptions=len(state.bus),
        memory_bytes=memory,
        parts={name: take() for name, take in state.introspectors.items() if name in ("transcripts", "traces")},
    )
