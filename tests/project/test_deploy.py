"""The dashboard asks for figures that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from replbroker.core.config import CoreConfig
from replbroker.core.engine import BrokerCore
from replbroker.sinks.prometheus import PrometheusCollector
from replwire.limits import Limits

DASHBOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy/grafana.json").read_text())


def _names(family: Metric) -> set[str]:
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
    return {family.name + end for end in ends.get(family.type, ("",))}


@pytest.fixture(scope="module")
def families() -> dict[str, str]:
    """Every figure by name, with its type."""
    setup = CoreConfig(
        limits=Limits(), warm_workers=0, idle_exit_ms=0, new_id=lambda: "1", monotonic_to_unix=lambda: 0.0
    )
    core = BrokerCore(setup)
    core.add_introspector("transcripts", lambda: {"written": 0, "lost": 0})
    core.add_introspector("traces", lambda: {"exported": 0, "lost-events": 0, "lost-spans": 0})
    return {name: family.type for family in PrometheusCollector(core).collect() for name in _names(family)}


def test_every_figure_of_the_dashboard_is_served_and_every_figure_is_shown(families: dict[str, str]) -> None:
    asked = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        for name in re.findall(r"replctl_\w+", target["expr"])
    }
    assert asked <= families.keys()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    served = {re.sub(r"_(bucket|sum|count)$", "", name) for name in families}
    assert served - shown == {"replctl_build_info"}


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_the_page_about_metrics_has_every_figure_and_no_other(families: dict[str, str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
    listed = {
        name for row in page.splitlines() if row.startswith("| `replctl_") for name in re.findall(r"replctl_\w+", row)
    }
    assert listed == {re.sub(r"_(bucket|sum|count)$", "", name) for name in families}
