"""What Prometheus reads: the broker's figures in its text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from replbroker.core.engine import BrokerCore
from replbroker.core.observing.metrics import Histogram
from replbroker.core.operations.views import queued_by_agent, quotas
from replbroker.core.state import BrokerState


class PrometheusCollector(Collector):
    """The families, made anew at each scrape."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """One scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """All families. Reads plain data; nothing waits."""
        state, staff = self._core.state, self._core.pool
        figures = state.emitter.metrics
        versions = dict(state.config.versions)
        yield InfoMetricFamily("replctl_build", "versions", value={"version": versions.get("replctl", "")})
        yield _counters("replctl_evals", "evals that ended, by how", "end", figures.evals_ended)
        yield _histogram("replctl_eval_duration_seconds", "how long code ran", figures.run_seconds)
        yield _histogram(
            "replctl_eval_queue_wait_seconds", "how long evals waited for their turn", figures.queue_seconds
        )
        yield _histogram("replctl_worker_start_seconds", "how long workers took to be ready", figures.worker_starts)
        refused = {
            key.removeprefix("refused."): count for key, count in state.counts.items() if key.startswith("refused.")
        }
        yield _counters("replctl_refusals", "requests that were refused, by fault", "word", refused)
        yield _gauges("replctl_workers", "worker processes, by state", "state", staff.count_by_state())
        yield GaugeMetricFamily("replctl_sessions", "sessions, throw-away ones included", value=len(state.sessions))
        yield GaugeMetricFamily("replctl_connections", "clients connected", value=len(state.connections))
        yield GaugeMetricFamily("replctl_slots_taken", "evals that have a slot", value=state.semaphore.in_use)
        yield GaugeMetricFamily("replctl_slots", "evals that may run at once", value=state.semaphore.capacity)
        yield _gauges("replctl_queued", "evals that wait, by agent", "agent", queued_by_agent(state))
        yield _quota_gauges("replctl_quota_used", "what identities hold, by the limit's name", state, "used")
        yield _quota_gauges("replctl_quota", "what identities may hold, by the limit's name", state, "quota")
        yield GaugeMetricFamily("replctl_subscriptions", "readers of events", value=len(state.bus))
        yield _counters("replctl_agent_cpu_seconds", "processor time of agents' sessions", "agent", figures.cpu_seconds)
        memory: dict[str, float] = {}
        for worker in staff.workers.values():
            if worker.session is not None:
                agent = worker.session.agent or ""
                memory[agent] = memory.get(agent, 0) + worker.usage.memory_bytes
        yield _gauges("replctl_agent_memory_bytes", "memory of agents' interpreters", "agent", memory)
        parts = state.config.introspectors
        if "transcripts" in parts:
            told = parts["transcripts"]()
            yield CounterMetricFamily("replctl_transcript_events", "events written", value=told["written"])
            yield CounterMetricFamily("replctl_transcript_lost", "events that could not be kept", value=told["lost"])
        if "traces" in parts:
            told = parts["traces"]()
            yield CounterMetricFamily("replctl_trace_spans", "spans that a collector has", value=told["exported"])
            lost = {"events": told["lost-events"], "spans": told["lost-spans"]}
            yield _counters("replctl_trace_lost", "what no collector has", "what", lost)


def _counters(name: str, text: str, label: str, values: Any) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauges(name: str, text: str, label: str, values: Any) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _quota_gauges(name: str, text: str, state: BrokerState, what: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["identity", "limit"])
    for identity, shown in quotas(state).items():
        for limit, figures in shown.items():
            family.add_metric([identity, limit], figures[what])
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], histogram.buckets(), histogram.sum)
    return family
