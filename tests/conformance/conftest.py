"""Fixtures: every test here runs once for each transport, against brokers that live as long as the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

from kit import close_sessions
from transports import KINDS, LINE_KINDS, USUAL, BrokerSite, BrokerSites


@pytest.fixture(scope="session")
def sites() -> Iterator[BrokerSites]:
    """All brokers of the run."""
    sites = BrokerSites()
    yield sites
    sites.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The transport."""
    return str(request.param)


def _opener(sites: BrokerSites, kind: str) -> Iterator[Callable[..., BrokerSite]]:
    used: list[BrokerSite] = []

    def open_site(*settings: str) -> BrokerSite:
        used.append(sites.site(kind, *(settings or USUAL)))
        return used[-1]

    yield open_site
    for site in used:
        with site.wire() as tidy:
            close_sessions(tidy)


@pytest.fixture
def site(sites: BrokerSites, kind: str) -> Iterator[Callable[..., BrokerSite]]:
    """The shared broker with these settings, `site("limits.max-sessions=0")`; its sessions are closed at the end."""
    yield from _opener(sites, kind)


@pytest.fixture
def own(kind: str) -> Iterator[Callable[..., BrokerSite]]:
    """An exclusive broker, for tests that stop it: `own("limits.max-sessions=2")`."""
    ends: list[Callable[[], None]] = []

    def start(*settings: str) -> BrokerSite:
        site, end = BrokerSites.own(kind, *(settings or USUAL))
        ends.append(end)
        return site

    yield start
    for end in ends:
        end()


@pytest.fixture
def wire(site: Callable[..., BrokerSite]) -> Iterator[Any]:
    """A connection to the broker with the usual settings."""
    with site().wire() as wire:
        yield wire


@pytest.fixture(params=LINE_KINDS)
def line(sites: BrokerSites, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A connection of which messages are lines."""
    for open_site in _opener(sites, request.param):
        with open_site().wire() as wire:
            yield wire
