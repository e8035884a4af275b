"""Fixtures for the broker's core: no process, no socket, no clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for broker_kit: pytest imports tests by file, not by directory
from core_harness import CoreHarness


@pytest.fixture
def new_harness() -> Callable[..., CoreHarness]:
    """The harness class, for limits of your own: `new_harness(warm=1, max_sessions=2)`."""
    return CoreHarness


@pytest.fixture
def harness(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A harness with the default limits, and workers that start at once."""
    return new_harness()
