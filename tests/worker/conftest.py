"""Fixtures that start real processes, and end them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("harness_kit", Path(__file__).with_name("harness_kit.py"))
assert _spec is not None
assert _spec.loader is not None
harness_kit = importlib.util.module_from_spec(_spec)
sys.modules["harness_kit"] = harness_kit
_spec.loader.exec_module(harness_kit)


@pytest.fixture
def start_harness() -> Iterator[Callable[..., Any]]:
    """Start harnesses (`start_harness(python)`), ready, and end them with the test."""
    started: list[Any] = []

    def start(python: str = sys.executable, *, ready: bool = True) -> Any:
        harness = harness_kit.Harness(python)
        started.append(harness)
        if ready:
            assert harness.frame()["t"] == "ready"
        return harness

    yield start
    for harness in started:
        harness.close()


@pytest.fixture
def harness(start_harness: Callable[..., Any]) -> Any:
    """One harness, ready."""
    return start_harness()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_python" in metafunc.fixturenames:
        found = harness_kit.interpreters()
        metafunc.parametrize("any_python", found, ids=[Path(path).parents[1].name for path in found])
