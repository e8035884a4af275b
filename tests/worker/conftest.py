"""Fixtures that start real processes, and end them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def _kit(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


harness_kit = _kit("harness_kit")
node_kit = _kit("node_kit")
bash_kit = _kit("bash_kit")


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


@pytest.fixture
def start_node() -> Iterator[Callable[..., Any]]:
    """Start node drivers, ready, and end them with the test."""
    path = node_kit.node_path()
    if path is None:
        assert "CI" not in os.environ, "CI has to have node"
        pytest.skip("there is no node on the path")
    started: list[Any] = []

    def start(*, ready: bool = True, env: dict[str, str] | None = None) -> Any:
        node = node_kit.Node(path, env)
        started.append(node)
        if ready:
            assert node.frame()["t"] == "ready"
        return node

    yield start
    for node in started:
        node.close()


@pytest.fixture
def node(start_node: Callable[..., Any]) -> Any:
    """One node driver, ready."""
    return start_node()


@pytest.fixture
def start_bash() -> Iterator[Callable[..., Any]]:
    """Start bash sessions (`start_bash(NAME="value")`), ready, and end them with the test."""
    started: list[Any] = []

    def start(**env: str) -> Any:
        session = bash_kit.Bash(**env)
        started.append(session)
        ready = session.frame()
        assert ready["t"] == "ready", ready
        session.ready = ready
        return session

    yield start
    for session in started:
        session.close()


@pytest.fixture
def bash(start_bash: Callable[..., Any]) -> Any:
    """One bash session, ready and assigned."""
    session = start_bash()
    assert session.assign()["error"] is None
    return session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_python" in metafunc.fixturenames:
        found = harness_kit.interpreters()
        metafunc.parametrize("any_python", found, ids=[Path(path).parents[1].name for path in found])
