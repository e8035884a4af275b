"""Fixtures for the broker's core: no process, no socket, no clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for broker_kit: pytest imports tests by file, not by folder
from core_harness import CoreHarness


@pytest.fixture
def new_table() -> Callable[..., CoreHarness]:
    """Lay a table with limits of your own: `new_table(warm=1, max_sessions=2)`."""
    return CoreHarness


@pytest.fixture
def table(new_table: Callable[..., CoreHarness]) -> CoreHarness:
    """A core with the default limits, and workers that start at once."""
    return new_table()
