"""The broker's metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class PrometheusCollector(Collector):
    """Collector of the metric families, built at each scrape."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the page for one scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield all families, from plain data of the core."""
        broker = self._core.read_metrics()
        metrics, parts = broker.metrics, broker.parts
        yield InfoMetricFamily("replctl_build", "versions", value={"version": broker.version})
        yield _counters("replctl_evals", "evals that ended, by how", "end", metrics.evals_ended)
        yield _histogram("replctl_eval_duration_seconds", "how long code ran", metrics.run_seconds)
        yield _histogram("replctl_eval_queue_wait_seconds", "how long evals waited in the queue", metrics.queue_seconds)
        yield _histogram("replctl_worker_start_seconds", "how long workers took to be ready", metrics.worker_starts)
        yield _counters(
            "replctl_rollbacks", "sessions that went on from a checkpoint, by reason", "reason", metrics.rollbacks
        )
        yield CounterMetricFamily("replctl_branches", "sessions that began as branches", value=metrics.branches)
        yield CounterMetricFamily("replctl_hibernations", "sessions that were hibernated", value=metrics.hibernations)
        yield _counters("replctl_refusals", "requests that were refused, by fault", "code", broker.errors)
        yield _gauges("replctl_workers", "worker processes, by state", "state", broker.workers)
        yield GaugeMetricFamily("replctl_sessions", "sessions, including ephemeral ones", value=broker.sessions)
        yield GaugeMetricFamily("replctl_connections", "clients connected", value=broker.connections)
        yield GaugeMetricFamily("replctl_slots_taken", "evals that have a slot", value=broker.slots_in_use)
        yield GaugeMetricFamily("replctl_slots", "evals that may run at once", value=broker.slots)
        yield _gauges("replctl_queued", "queued evals, by agent", "agent", broker.queued)
        yield _quota_gauges("replctl_quota_used", "use of quotas, by identity and limit", broker.quotas, "used")
        yield _quota_gauges("replctl_quota", "quotas, by identity and limit", broker.quotas, "quota")
        yield GaugeMetricFamily("replctl_subscriptions", "subscriptions to events", value=broker.subscriptions)
        yield _counters("replctl_host_connections", "connections to listed hosts", "outcome", metrics.connections)
        yield _counters("replctl_network_bytes", "bytes of those connections", "direction", metrics.network_bytes)
        yield _counters("replctl_agent_cpu_seconds", "processor time of agents' sessions", "agent", metrics.cpu_seconds)
        yield _gauges("replctl_agent_memory_bytes", "memory of agents' interpreters", "agent", broker.memory_bytes)
        if "transcripts" in parts:
            written, lost = parts["transcripts"]["written"], parts["transcripts"]["lost"]
            yield CounterMetricFamily("replctl_transcript_events", "events written", value=written)
            yield CounterMetricFamily("replctl_transcript_lost", "events that could not be written", value=lost)
        if "traces" in parts:
            snapshot = parts["traces"]
            yield CounterMetricFamily(
                "replctl_trace_spans", "spans that the collector has accepted", value=snapshot["exported"]
            )
            counts = {"events": snapshot["lost-events"], "spans": snapshot["lost-spans"]}
            yield _counters("replctl_trace_lost", "events and spans that did not reach the collector", "what", counts)


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


def _quota_gauges(name: str, text: str, quotas: Mapping[str, Any], what: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["identity", "limit"])
    for identity, shown in quotas.items():
        for limit, usage in shown.items():
            family.add_metric([identity, limit], usage[what])
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], histogram.buckets(), histogram.sum)
    return family
