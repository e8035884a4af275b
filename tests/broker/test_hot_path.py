"""The hot path: an eval and an event pass through few functions of the core, and each goes on or returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import replbroker.core
from core_harness import CoreHarness
from replbroker.core.effects import Effect, PublishEvent

CORE = Path(replbroker.core.__file__).parent
ASKED_BY_THE_HARNESS = {
    "BrokerCore.has_identity",
    "AccessControl.is_registered",
    "BrokerCore.pending_events",
    "EventBus.pending_effects",
}


def trace(action: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the calls of functions of the core during an action, as file and function."""
    calls = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(CORE):
            calls.append((path.relative_to(CORE).as_posix(), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def test_an_eval_makes_few_calls_in_few_files() -> None:
    core = CoreHarness(record=False)
    core.finish(core.eval())
    calls = [call for call in trace(lambda: core.finish(core.eval())) if call[1] not in ASKED_BY_THE_HARNESS]
    assert len(calls) <= 54, calls
    assert len({file for file, _ in calls}) <= 25


def test_an_event_is_built_by_few_calls() -> None:
    core = CoreHarness()
    core.core.on_extension_loaded("words", [], core.now)
    effects: list[Effect] = []
    calls = trace(lambda: effects.extend(core.core.flush_events()))
    assert [type(effect) for effect in effects] == [PublishEvent]
    assert len(calls) <= 7, calls
    assert len({file for file, _ in calls}) <= 4


def test_an_eval_that_need_not_wait_is_not_charged_to_the_queue() -> None:
    core = CoreHarness(record=False)
    core.finish(core.eval())
    calls = trace(lambda: core.finish(core.eval()))
    assert "EvalQueue.add" not in {function for _, function in calls}
    assert [function for _, function in calls].count("Quotas.charge") == 1
